//! Durations as people read them, in messages and in the log.

use std::time::Duration;

const HOUR: u64 = 3600;

/// A setting as it was given: `24h`, `10s`, `1.5s`, `250ms`. A bound that was computed comes here in
/// whole milliseconds, by [`down_to_ms`] or [`up_to_ms`].
pub(crate) fn setting(time: Duration) -> String {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * HOUR);
    if time.is_zero() {
        "0s".to_owned()
    } else if time > LONGEST {
        // `18446744073709551615.999999999s` is hard to read.
        "more than 100 years".to_owned()
    } else if time.subsec_nanos() == 0 && time.as_secs().is_multiple_of(HOUR) {
        format!("{}h", time.as_secs() / HOUR)
    } else {
        format!("{time:?}")
    }
}

/// A time that has passed or is left: `25ms`, `1.5s`, `3m 04s`, `2h 05m`, `4d 11h`.
pub(crate) fn measured(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / HOUR);
    match seconds {
        0 if time < Duration::from_millis(1) => "less than 1ms".to_owned(),
        0 => format!("{}ms", time.subsec_millis()),
        1..60 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        60..3600 => format!("{minutes}m {:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{}d {:02}h", hours / 24, hours % 24),
    }
}

/// An upper bound without needless digits.
pub(crate) fn down_to_ms(time: Duration) -> Duration {
    time - Duration::from_nanos(u64::from(time.subsec_nanos()) % 1_000_000)
}

/// A lower bound without needless digits.
pub(crate) fn up_to_ms(time: Duration) -> Duration {
    down_to_ms(time.saturating_add(Duration::from_nanos(999_999)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_without_needless_digits() {
        for (nanos, shown) in [
            (0, "0s"),
            (1_000_000, "1ms"),
            (1_500_000_000, "1.5s"),
            (10_000_000_000, "10s"),
            (90_000_000_000, "90s"),
            (86_400_000_000_000, "24h"),
        ] {
            assert_eq!(setting(Duration::from_nanos(nanos)), shown);
        }
        assert_eq!(setting(Duration::MAX), "more than 100 years");
        let third = Duration::from_secs(5) / 3;
        assert_eq!(setting(down_to_ms(third)), "1.666s");
        assert_eq!(setting(up_to_ms(third)), "1.667s");
        assert_eq!(up_to_ms(Duration::from_secs(1)), Duration::from_secs(1));
        assert!(up_to_ms(Duration::MAX) > down_to_ms(third));
    }

    #[test]
    fn measured_times_are_shown_without_needless_digits() {
        for (micros, shown) in [
            (0, "less than 1ms"),
            (999, "less than 1ms"),
            (1_999, "1ms"),
            (999_999, "999ms"),
            (2_345_678, "2.3s"),
            (184_000_000, "3m 04s"),
            (7_500_000_000, "2h 05m"),
            (385_200_000_000, "4d 11h"),
        ] {
            assert_eq!(measured(Duration::from_micros(micros)), shown);
        }
    }
}
