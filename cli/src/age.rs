//! Ages and times left, short enough for a column: `0.4s`, `12s`, `3m 04s`, `2h 05m`, `4d 11h`.

use std::time::Duration;

/// At most seven characters, for anything below a thousand days.
pub(crate) fn short(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..10 => format!("{}.{}s", seconds, age.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m {:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short_and_never_rounded_up() {
        for (millis, shown) in [
            (0, "0.0s"),
            (9_999, "9.9s"),
            (10_000, "10s"),
            (59_999, "59s"),
            (184_000, "3m 04s"),
            (7_500_000, "2h 05m"),
            (385_200_000, "4d 11h"),
        ] {
            assert_eq!(short(Duration::from_millis(millis)), shown);
        }
    }
}
