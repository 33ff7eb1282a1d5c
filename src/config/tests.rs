use super::*;
use crate::error::Misuse;
use crate::options::DEFAULT_TTL;

fn with_ttl(ms: u64) -> Settings {
    Settings {
        options: LockOptions::new().ttl(Duration::from_millis(ms)),
        ..Settings::default()
    }
}

#[test]
fn derived_numbers_fit_each_other_at_every_ttl() {
    for ms in [1000, 1001, 1999, 5000, 10_000, 60_000, 86_400_000] {
        let (config, _) = Config::new(with_ttl(ms)).unwrap();
        assert!(
            config.check_period + config.command_timeout * 3 <= config.horizon,
            "{ms}"
        );
    }
}

#[test]
fn horizon_and_outage_limit_follow_a_longer_command_timeout() {
    let seconds = Duration::from_secs;
    let settings = Settings {
        command_timeout: Some(seconds(12)),
        ..with_ttl(120_000)
    };
    let (config, _) = Config::new(settings).unwrap();
    assert_eq!(config.horizon, seconds(37));
    assert_eq!(config.outage_limit, seconds(12));
}

/// The setting that is to blame, and the largest value that fits.
#[test]
fn misfit_is_blamed_on_what_was_set() {
    let ms = Duration::from_millis;
    let of = |settings: Settings| match Config::new(settings) {
        Err(Error::Misused {
            misuse: Misuse::Setting { name },
            message,
            ..
        }) => (name, message),
        other => panic!("{other:?}"),
    };
    let timeout = |ms: Duration| Settings {
        command_timeout: Some(ms),
        ..Settings::default()
    };
    let (what, message) = of(timeout(ms(5000)));
    assert_eq!(what, "command_timeout");
    assert!(
        message.starts_with("at most 1.555s with the ttl of 10s"),
        "{message}"
    );
    assert!(message.contains("at least 28.236s"), "{message}");
    assert!(Config::new(timeout(ms(1555))).is_ok());
    assert!(Config::new(timeout(ms(1556))).is_err());
    let check_period = Settings {
        check_period: Some(ms(8000)),
        ..Settings::default()
    };
    assert_eq!(of(check_period).0, "check_period");
    let horizon = Settings {
        horizon: Some(ms(20_000)),
        ..Settings::default()
    };
    assert_eq!(of(horizon).0, "horizon");
    let two = Settings {
        check_period: Some(ms(3000)),
        ..timeout(ms(3000))
    };
    let (what, message) = of(two);
    assert_eq!(what, "ttl");
    assert!(
        message.contains("command_timeout 3s and check_period 3s"),
        "{message}"
    );
}

#[test]
fn long_durations_in_messages_can_be_read() {
    for (duration, text) in [
        (Duration::ZERO, "0s"),
        (Duration::from_millis(1500), "1.5s"),
        (Duration::from_secs(3600), "1h"),
        (MAX_TTL, "24h"),
        (MAX_TTL + Duration::from_secs(1), "86401s"),
        (Duration::MAX, "more than 100 years"),
    ] {
        assert_eq!(shown(duration), text);
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let ms = Duration::from_millis;
    let bad = [
        Settings {
            horizon: Some(ms(2400)),
            ..Settings::default()
        },
        Settings {
            horizon: Some(ms(5700)),
            ..Settings::default()
        },
        // 17/30 of the ttl is 5666.6… ms.
        Settings {
            horizon: Some(ms(5667) - Duration::from_nanos(1)),
            ..Settings::default()
        },
        // P + 3T = 5.8 s
        Settings {
            command_timeout: Some(ms(1600)),
            ..Settings::default()
        },
        Settings {
            check_period: Some(Duration::ZERO),
            ..Settings::default()
        },
        Settings {
            outage_limit: Some(ms(10)),
            ..Settings::default()
        },
        Settings {
            long_wait: Some(Duration::ZERO),
            ..Settings::default()
        },
        Settings {
            lanes: Some(0),
            ..Settings::default()
        },
        Settings {
            prefix: Some("a{b".into()),
            ..Settings::default()
        },
        with_ttl(999),
        with_ttl(86_400_001),
        Settings {
            options: LockOptions::new().ttl(Duration::MAX),
            ..Settings::default()
        },
    ];
    for settings in bad {
        assert!(
            matches!(Config::new(settings.clone()), Err(Error::Misused { .. })),
            "{settings:?}"
        );
    }
}

#[test]
fn documented_defaults_and_ranges_match_the_code() {
    let page = include_str!("../../docs/CONFIGURATION.md");
    // How a setting is derived, for the columns of shorter TTLs. The unit tests check the
    // derivation itself.
    let derived = |default: Duration, part: u32| {
        [5, 2, 1].map(|s| human(default.min(Duration::from_secs(s) / part)))
    };
    let row = |default: Duration, part: u32| derived(default, part).join(", ");
    let (t, p, h) = (
        DEFAULT_COMMAND_TIMEOUT,
        DEFAULT_CHECK_PERIOD,
        DEFAULT_HORIZON,
    );
    let rows = [
        format!(
            "| `ttl` | {} | {} to {} |",
            human(DEFAULT_TTL),
            human(MIN_TTL),
            human(MAX_TTL)
        ),
        format!(
            "| `fixed_lease` | none | {} to {} by `try_lock`;",
            human(MIN_FIXED_LEASE),
            human(MAX_TTL)
        ),
        format!("| `hold_at_least` | 0 s | 0 s to {} |", human(MAX_TTL)),
        format!("| `label` | none | {MAX_LABEL} bytes"),
        format!("| `prefix` | `{DEFAULT_PREFIX}` |"),
        format!("| `lanes` | {DEFAULT_LANES} |"),
        format!(
            "| `command_timeout`, T | {}, or a tenth of the ttl | 1 ms to 24 h | {} |",
            human(t),
            row(t, 10)
        ),
        format!("| `connect_timeout` | T | 1 ms to 24 h | {} |", row(t, 10)),
        format!(
            "| `check_period`, P | {}, or an eighth of the ttl | 1 ms to 24 h | {} |",
            human(p),
            row(p, 8)
        ),
        format!(
            "| `horizon`, H | {}, or half of the ttl; P + 3 T ",
            human(h)
        ),
        format!("from P + 3 T to 17/30 of the ttl | {} |", row(h, 2)),
        format!(
            "| `uptime_check` | `{}` |",
            Config::new(Settings::default()).unwrap().0.uptime_check
        ),
        format!("| `outage_limit` | {}; T ", human(DEFAULT_OUTAGE_LIMIT)),
        format!("| `long_wait` | {} | from 1 ms;", human(DEFAULT_LONG_WAIT)),
    ];
    let absent: Vec<_> = rows.into_iter().filter(|row| !page.contains(row)).collect();
    assert!(absent.is_empty(), "docs/CONFIGURATION.md lacks {absent:#?}");
}

fn human(d: Duration) -> String {
    match d.as_millis() {
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms >= 1000 => format!("{} s", ms as f64 / 1000.0),
        ms => format!("{ms} ms"),
    }
}
