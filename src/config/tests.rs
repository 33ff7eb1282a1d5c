use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::error::Misuse;
use crate::manager::LockManager;
use crate::setting::FIXED_LEASE;

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
        (TTL.most, "24h"),
        (TTL.most + Duration::from_secs(1), "86401s"),
        (Duration::MAX, "more than 100 years"),
    ] {
        assert_eq!(shown(duration), text);
    }
}

/// A setting of the pages: its default, its range, and the last column.
type Documented<'a> = BTreeMap<&'a str, [&'a str; 3]>;

fn documented(page: &str) -> Documented<'_> {
    let (tables, _) = page
        .split_once("## Features of the crate")
        .expect("it ends");
    let mut documented = Documented::new();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, names, default, range, last, _] = cells[..] else {
            panic!("four cells: {line}");
        };
        for name in names.split('`').skip(1).step_by(2) {
            let before = documented.insert(name, [default, range, last]);
            assert_eq!(before, None, "{name} is there twice");
        }
    }
    documented
}

/// The methods of `Builder` and `LockOptions` that set something. One that unsets an option, or takes
/// the same from files, is no setting of its own.
fn setters() -> BTreeSet<&'static str> {
    let sources = [include_str!("../builder.rs"), include_str!("../options.rs")];
    let methods = sources.iter().flat_map(|source| source.split(" fn "));
    let methods = methods.filter_map(|method| method.split_once('('));
    methods
        .filter(|(_, rest)| rest.trim_start().starts_with("mut self"))
        .map(|(name, _)| name.trim_end_matches("_files").trim_end_matches("_file"))
        .filter(|name| *name != "options" && !name.starts_with("no_"))
        .collect()
}

#[test]
fn documented_defaults_and_ranges_match_the_code() {
    let mut documented = documented(include_str!("../../docs/CONFIGURATION.md"));
    assert_eq!(
        documented.keys().copied().collect::<BTreeSet<_>>(),
        setters()
    );
    let at = |seconds: u64| Config::new(with_ttl(seconds * 1000)).unwrap();
    let (config, options) = at(10);
    for (name, default) in [
        ("wait_on_drop", config.wait_on_drop),
        ("uptime_check", config.uptime_check),
        ("notify_wanted", options.notifies_wanted()),
    ] {
        assert_eq!(documented[name][0], format!("`{default}`"), "{name}");
    }
    for (name, of) in [
        (
            "command_timeout",
            (|c| c.command_timeout) as fn(&Config) -> _,
        ),
        ("connect_timeout", |c| c.connect_timeout),
        ("check_period", |c| c.check_period),
        ("horizon", |c| c.horizon),
    ] {
        let shorter = [5, 2, 1].map(|seconds| human(of(&at(seconds).0)));
        assert_eq!(documented[name][2], shorter.join(", "), "{name}");
    }
    let mut check = |name: &str, [default, least, most]: [String; 3]| {
        let [shown_default, shown_range, _] = documented.remove(name).expect(name);
        let default = match name {
            "fixed_lease" | "keep_idle" | "label" => "none".to_owned(),
            "replica_acks" => "off".to_owned(),
            "prefix" => format!("`{DEFAULT_PREFIX}`"),
            "connect_timeout" => "T".to_owned(),
            "command_timeout" => format!("{default}, or a tenth of the ttl"),
            "check_period" => format!("{default}, or an eighth of the ttl"),
            "horizon" => format!("{default}, or half of the ttl; P + 3 T if that is more"),
            "outage_limit" => format!("{default}; T if that is more"),
            "max_kept" => format!("{default} names"),
            _ => default,
        };
        assert_eq!(shown_default, default, "{name}");
        let range = match name {
            "label" => format!("{most} bytes"),
            "keep_idle" => format!("{least} to a third of the ttl"),
            "horizon" => "from P + 3 T to 17/30 of the ttl".to_owned(),
            "outage_limit" => "from T".to_owned(),
            "long_wait" => format!("from {least}"),
            "replica_acks" => format!("a number of replicas, and {least} to half of T"),
            _ => format!("{least} to {most}"),
        };
        let behind = shown_range.strip_prefix(&range);
        let behind = behind.unwrap_or_else(|| panic!("{name}: {range}, not {shown_range}"));
        assert!(
            !behind.starts_with(char::is_alphanumeric),
            "{name}: {shown_range}"
        );
    };
    for setting in [
        TTL,
        FIXED_LEASE,
        HOLD_AT_LEAST,
        KEEP_IDLE,
        COMMAND_TIMEOUT,
        CONNECT_TIMEOUT,
        CHECK_PERIOD,
        HORIZON,
        OUTAGE_LIMIT,
        LONG_WAIT,
        REPLICA_ACKS,
    ] {
        let row = [setting.default, setting.least, setting.most];
        check(setting.name, row.map(human));
    }
    for setting in [LOCAL_HANDOVERS, LABEL, PREFIX, LANES, MAX_KEPT] {
        let row = [setting.default, setting.least, setting.most];
        check(setting.name, row.map(in_thousands));
    }
    for (name, [default, range, _]) in documented {
        let has_number = [default, range]
            .concat()
            .contains(|c: char| c.is_ascii_digit());
        assert!(
            !has_number,
            "{name} is in no row of the table: {default}, {range}"
        );
    }
}

fn human(d: Duration) -> String {
    match d.as_millis() {
        0 => "0 s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms >= 1000 => format!("{} s", ms as f64 / 1000.0),
        ms => format!("{ms} ms"),
    }
}

fn in_thousands(number: u32) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", in_thousands(number / 1000), number % 1000),
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let ms = Duration::from_millis;
    let new = LockOptions::new;
    let builder = || LockManager::builder("redis://127.0.0.1");
    let with = |options: LockOptions| builder().options(options);
    let (text, zero) = (|count| "a".repeat(count), Duration::ZERO);
    // 17/30 of the ttl is 5666.6… ms.
    let horizon = ms(5667) - Duration::from_nanos(1);
    for (refused, message) in [
        (with(new().ttl(ms(999))), "ttl: 1s to 24h; it is 999ms"),
        (
            with(new().ttl(ms(86_400_001))),
            "ttl: 1s to 24h; it is 86400.001s",
        ),
        (
            with(new().ttl(Duration::MAX)),
            "ttl: 1s to 24h; it is more than 100 years",
        ),
        (
            with(new().fixed_lease(ms(9))),
            "fixed_lease: 10ms to 24h; it is 9ms",
        ),
        (
            with(new().hold_at_least(ms(86_400_001))),
            "hold_at_least: at most 24h; it is 86400.001s",
        ),
        (
            with(new().max_hold(zero)),
            "max_hold: more than zero; it is zero",
        ),
        (
            with(new().keep_idle(ms(3334))),
            "keep_idle: 1ms to 3.333s; it is 3.334s",
        ),
        (
            with(new().local_handovers(65_536)),
            "local_handovers: at most 65535 hand-overs; it is 65536",
        ),
        (
            with(new().label(text(257))),
            "label: at most 256 bytes, without control characters; it has 257 bytes",
        ),
        (
            with(new().label("a\n")),
            "label: at most 256 bytes, without control characters; it contains '\\n'",
        ),
        (
            builder().prefix(""),
            "prefix: 1 to 128 bytes, without braces and control characters; it has 0 bytes",
        ),
        (
            builder().prefix("a{b"),
            "prefix: 1 to 128 bytes, without braces and control characters; it contains '{'",
        ),
        (builder().lanes(0), "lanes: 1 to 64 lanes; it is 0"),
        (builder().lanes(65), "lanes: 1 to 64 lanes; it is 65"),
        (
            builder().max_kept(0),
            "max_kept: 1 to 1000000 names; it is 0",
        ),
        (
            builder().connect_timeout(zero),
            "connect_timeout: 1ms to 24h; it is 0s",
        ),
        (
            builder().check_period(zero),
            "check_period: 1ms to 24h; it is 0s",
        ),
        (
            builder().long_wait(zero),
            "long_wait: at least 1ms; it is 0s",
        ),
        (
            builder().outage_limit(ms(499)),
            "outage_limit: at least the command timeout, 500ms; it is 499ms",
        ),
        (
            builder().replica_acks(1, ms(251)),
            "replica_acks: a timeout of 1ms to half the command timeout, 250ms; it is 251ms",
        ),
        (
            builder().horizon(ms(2400)),
            "horizon: at least check_period + 3 × command_timeout, 2.5s; it is 2.4s",
        ),
        (
            builder().horizon(horizon),
            "horizon: at most 5.666s with the ttl of 10s, or a ttl of at least 10.001s; it is 5.666999999s",
        ),
        // P + 3T = 5.8 s
        (
            builder().command_timeout(ms(1600)),
            "command_timeout: at most 1.555s with the ttl of 10s, or a ttl of at least 10.236s; it is 1.6s",
        ),
    ] {
        let error = refused.build().expect_err(message);
        assert_eq!(error.to_string(), message);
    }
    let (config, _) = Config::new(Settings::default()).unwrap();
    let longer = config.check_for_quorum(&new().hold_at_least(ms(10_001)));
    let error = longer.expect_err("longer than the ttl").to_string();
    assert!(
        error.ends_with("on a quorum at most the ttl of the builder's options, 10s; it is 10.001s")
    );
}
