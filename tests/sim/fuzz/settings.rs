//! URLs and settings. A refusal never shows the password, and accepted settings are those that
//! docs/CONFIGURATION.md allows.

use std::time::Duration;

use super::input::FuzzInput;
use crate::config::{Config, ReplicaAcks, Settings};
use crate::endpoint::Endpoint;
use crate::error::{Error, Misuse, Result};
use crate::manager::LockManager;
use crate::options::LockOptions;
use crate::store::{Login, Topology, parse_url};

const SECRET: &str = "hunter2";

/// Any text as a URL, and URLs made of parts with a password among them.
pub fn url(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    match input.below(4) {
        0 => {
            let text = String::from_utf8_lossy(input.rest());
            check_refusal(&parse_url(&text));
            let _ = format!(
                "{:?} {:?}",
                Endpoint::from(&*text),
                LockManager::builder(&*text)
            );
        }
        1 => check_round_trip(&mut input),
        // As a user types it who does not know percent-encoding.
        _ => {
            let password = format!("{}{SECRET}{}", input.text(), input.text());
            let scheme = input.choose(&[
                "redis",
                "redis",
                "unix",
                "redis+unix",
                "rediss",
                "valkey",
                "redis-sentinel",
                "valkeys-cluster",
                "",
            ]);
            // The text after a slash is a path, which is no secret.
            let text = match input.below(3) {
                0 => format!(
                    "{scheme}:///{}?{}={password}{}",
                    input.text(),
                    input.choose(&["pass", "password"]),
                    input.text()
                ),
                1 => format!(
                    "{scheme}://{}:{password}@{}",
                    input.text().replace('/', ""),
                    input.text()
                ),
                _ => format!("{scheme}://:{password}@127.0.0.1:6379/1{}", input.text()),
            };
            check_password_is_hidden(&text);
        }
    }
}

fn check_password_is_hidden(text: &str) {
    let parsed = parse_url(text);
    check_refusal(&parsed);
    let mut shown = format!(
        "{:?} {:?}",
        Endpoint::from(text),
        LockManager::builder(text)
    );
    if let Err(error) = &parsed {
        shown.push_str(&format!("{error} {error:?}"));
    }
    assert!(
        !shown.contains(SECRET),
        "the password of {text:?} is shown: {shown}"
    );
}

fn check_refusal<T>(parsed: &Result<T>) {
    if let Err(error) = parsed {
        let about_url = matches!(
            error,
            Error::Misused {
                misuse: Misuse::Setting { name: "url", .. },
                ..
            }
        );
        assert!(about_url, "{error:?}");
    }
}

fn check_round_trip(input: &mut FuzzInput<'_>) {
    let user = input.text();
    let password = format!("{SECRET}{}", input.text());
    let db = input.byte();
    let (user_written, password_written) = (percent_encoded(&user), percent_encoded(&password));
    let login = format!("{user_written}:{password_written}@");
    let sentinel_login = format!("sentinelUsername=s&sentinelPassword={password_written}");
    let text = match input.below(4) {
        0 => format!("redis://{login}127.0.0.1:6380/{db}"),
        1 => format!("redis+unix:///tmp/s?db={db}&user={user_written}&pass={password_written}"),
        2 => format!("redis-sentinel://{login}[::1]:1,h/m/{db}?node=g:2&{sentinel_login}"),
        _ => format!("redis-cluster://{login}h:1,h?node=h:2"),
    };
    check_password_is_hidden(&text);
    let parsed = parse_url(&text).unwrap_or_else(|error| panic!("{text:?} is refused: {error}"));
    let read = match parsed {
        Topology::Single(server) => server.login,
        Topology::Sentinel(settings) => {
            assert_eq!(settings.sentinel_login.password.as_ref(), Some(&password));
            assert_eq!((settings.sentinels.len(), &*settings.service), (3, "m"));
            settings.login
        }
        Topology::Cluster(settings) => {
            assert_eq!(settings.seeds.len(), 3, "{text:?}");
            Login {
                database: db.into(),
                ..settings.login
            }
        }
        Topology::Quorum(_) => panic!("{text:?} is no list"),
    };
    assert_eq!(read.password.as_ref(), Some(&password), "{text:?}");
    assert_eq!(read.user.unwrap_or_default(), user, "{text:?}");
    assert_eq!(read.database, i64::from(db), "{text:?}");
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Any settings of a builder and of a handle.
pub fn config(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let wanted = Settings {
        prefix: input.one_in(2).then(|| input.text()),
        options: options(&mut input),
        lanes: input.one_in(4).then(|| input.number() as u32),
        max_kept: input.one_in(4).then(|| input.number() as u32),
        connect_timeout: maybe_duration(&mut input),
        command_timeout: maybe_duration(&mut input),
        check_period: maybe_duration(&mut input),
        horizon: maybe_duration(&mut input),
        outage_limit: maybe_duration(&mut input),
        wait_on_drop: input.one_in(4),
        replica_acks: input.one_in(4).then(|| ReplicaAcks {
            wanted: input.number() as u32,
            timeout: duration(&mut input),
        }),
        uptime_check: None,
        long_wait: maybe_duration(&mut input),
    };
    let _ = format!("{wanted:?}");
    let config = match Config::new(wanted.clone()) {
        Ok((config, options)) => {
            check_options(&config, &options);
            config
        }
        Err(error) => return check_config_error(&error),
    };
    check_numbers(&config, &wanted);
    let mut handle = options(&mut input);
    if input.one_in(2) {
        // About the smallest ttl that fits, and a little more or less.
        let least = config.horizon.max(config.check_period) * 30 / 17;
        handle = handle.ttl(least.saturating_sub(MS) + duration(&mut input).min(2 * MS));
    }
    match config.check_options(&handle) {
        Ok(()) => check_options(&config, &handle),
        Err(error) => check_config_error(&error),
    }
    match config.check_wait(&handle) {
        Ok(()) if handle.is_fixed() => {
            let ttl = handle.lease_length();
            let least = config.check_period + 2 * config.command_timeout;
            assert!(
                ttl >= Duration::from_secs(1) && ttl > least,
                "{handle:?} may wait with {config:?}"
            );
        }
        Ok(()) => {}
        Err(error) => check_config_error(&error),
    }
}

fn maybe_duration(input: &mut FuzzInput<'_>) -> Option<Duration> {
    input.one_in(2).then(|| duration(input))
}

fn duration(input: &mut FuzzInput<'_>) -> Duration {
    match input.below(6) {
        0 => Duration::from_millis(u64::from(input.byte()) * 20),
        1 => {
            Duration::from_millis(u64::from(input.byte()) * 20)
                + Duration::from_nanos(u64::from(input.byte()) * 3907)
        }
        2 => Duration::from_secs(input.byte().into()),
        3 => input.choose(&[
            Duration::MAX,
            Duration::ZERO,
            Duration::from_secs(86_400),
            Duration::from_secs(1),
        ]),
        4 => Duration::from_nanos(input.number()),
        _ => Duration::new(input.number(), u32::from(input.byte()) * 3_000_000),
    }
}

fn options(input: &mut FuzzInput<'_>) -> LockOptions {
    let mut options = LockOptions::new();
    match input.below(4) {
        0 => {}
        1 => options = options.fixed_lease(duration(input)),
        _ => options = options.ttl(duration(input)),
    }
    if input.one_in(4) {
        options = options.max_hold(duration(input));
    }
    if input.one_in(4) {
        options = options.hold_at_least(duration(input));
    }
    if input.one_in(4) {
        let label = if input.one_in(4) {
            input.text().repeat(3)
        } else {
            input.text()
        };
        options = options.label(label);
    }
    options
}

fn check_config_error(error: &Error) {
    let is_clear = matches!(error, Error::Misused { message, .. } if !message.is_empty());
    assert!(is_clear, "{error:?}");
    let _ = error.to_string();
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The bounds and defaults in the table of `Builder`.
fn check_numbers(config: &Config, wanted: &Settings) {
    let ttl = wanted.options.lease_length();
    let (t, p, h) = (config.command_timeout, config.check_period, config.horizon);
    for (what, value) in [
        ("T", t),
        ("connect", config.connect_timeout),
        ("P", p),
        ("H", h),
    ] {
        assert!(
            (MS..=DAY).contains(&value),
            "{what} is {value:?} by {wanted:?}"
        );
    }
    assert!((1..=64).contains(&config.lanes), "{wanted:?}");
    assert!(config.outage_limit >= t, "{config:?} by {wanted:?}");
    assert!(config.long_wait >= MS, "{config:?} by {wanted:?}");
    let prefix = &config.prefix;
    assert!((1..=128).contains(&prefix.len()), "{wanted:?}");
    assert!(
        !prefix
            .chars()
            .any(|c| c == '{' || c == '}' || c.is_control()),
        "{wanted:?}"
    );
    assert!(h >= p + 3 * t, "{config:?} by {wanted:?}");
    if !wanted.options.is_fixed() {
        // 2/3 − 1/10 = 17/30
        assert!(
            h.as_nanos() * 30 <= ttl.as_nanos() * 17,
            "{config:?} by {wanted:?}"
        );
        let derived = |set: Option<Duration>, most: u32, part: u32| {
            set.unwrap_or((most * MS).min(ttl / part))
        };
        assert_eq!(t, derived(wanted.command_timeout, 500, 10), "{wanted:?}");
        assert_eq!(p, derived(wanted.check_period, 1000, 8), "{wanted:?}");
        assert_eq!(h, derived(wanted.horizon, 5000, 2), "{wanted:?}");
    }
    assert_eq!(
        config.connect_timeout,
        wanted.connect_timeout.unwrap_or(t),
        "{wanted:?}"
    );
}

/// The bounds in the table of `LockOptions`, and what a renewed lock needs of its manager's
/// settings.
fn check_options(config: &Config, options: &LockOptions) {
    let ttl = options.lease_length();
    let least = if options.is_fixed() {
        10 * MS
    } else {
        Duration::from_secs(1)
    };
    assert!((least..=DAY).contains(&ttl), "{options:?}");
    assert!(
        options
            .hold_limit()
            .is_none_or(|limit| limit > Duration::ZERO),
        "{options:?}"
    );
    assert!(options.least_hold() <= DAY, "{options:?}");
    let label = options.label_text();
    assert!(
        label.len() <= 256 && !label.chars().any(char::is_control),
        "{options:?}"
    );
    if !options.is_fixed() {
        assert!(
            config.horizon.as_nanos() * 30 <= ttl.as_nanos() * 17,
            "{options:?} with {config:?}"
        );
        assert!(
            ttl > config.check_period + 2 * config.command_timeout,
            "{options:?} with {config:?}"
        );
    }
}
