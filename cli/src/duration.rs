//! Durations on the command line: `250ms`, `10s`, `1m 30s`, `2h`.

use std::time::Duration;

use crate::age;

/// For clap: reads `250ms`, `10s`, `1m 30s`, `2h`. A bare number is refused: its unit is a guess.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// A time that was measured: `45.3µs`, `1.2s`, `3m 04s`.
pub(crate) fn measured(time: Duration) -> String {
    match time.as_secs() {
        0 if time.is_zero() => "0s".to_owned(),
        0..60 => format!("{time:.1?}"),
        _ => age::short(time),
    }
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
