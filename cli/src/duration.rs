//! Durations on the command line: `250ms`, `10s`, `1m 30s`, `2h`.

use std::time::Duration;

/// For clap: reads `250ms`, `10s`, `1m 30s`, `2h`. A bare number is refused: its unit is a guess.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// A time that was measured: `45.3µs`, `1.2s`, `184.0s`.
pub(crate) fn measured(time: Duration) -> String {
    format!("{time:.1?}")
}

/// The shortest time between two looks. Nobody reads faster, so more looks only load the server.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest one. Sums of it with other times do not overflow.
const MAX_INTERVAL: Duration = Duration::from_secs(86_400);

/// For clap: reads the time between two looks.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse(text)?;
    if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        return Err("an interval is 100ms to 1d".to_owned());
    }
    Ok(interval)
}
