//! Durations on the command line: `250ms`, `10s`, `1m 30s`, `2h`.

use std::time::Duration;

/// For clap: reads `250ms`, `10s`, `1m 30s`, `2h`. A bare number is refused: its unit is a guess.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}
