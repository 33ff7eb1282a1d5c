//! The checks, with the texts that Redis 6.2.14, 7.0.15 and Valkey 9.1.2 sent.

use std::time::Duration;

use super::answer::Info;
use super::facts::{
    ClockReading, Deployment, Facts, NodeAnswers, NodeFacts, NodeRole, Settings, WorkAnswers,
};
use super::{Check, Diagnosis, Finding, Level, Limits, diagnose};

pub(super) const INFOS: [&str; 3] = [
    include_str!("infos/6.2.txt"),
    include_str!("infos/7.0.txt"),
    include_str!("infos/valkey.txt"),
];

/// The settings of a server that is as it should be.
const GOOD: [(&str, &str); 11] = [
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("appendfsync", "everysec"),
    ("save", ""),
    ("stop-writes-on-bgsave-error", "yes"),
    ("timeout", "0"),
    ("min-replicas-to-write", "1"),
    ("min-replicas-max-lag", "10"),
    (
        "client-output-buffer-limit",
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    ),
    ("lua-time-limit", "5000"),
    ("cluster-require-full-coverage", "no"),
];

pub(super) const MS: Duration = Duration::from_millis(1);

/// A change of the fields of INFO and of the settings.
pub(super) type Change<'a> = (&'a [(&'a str, &'a str)], &'a [(&'static str, &'a str)]);

/// A server that is as it should be, but for these fields and settings.
pub(super) fn answers(text: &str, (fields, settings): Change<'_>) -> NodeAnswers {
    let mut text = text.replace("aof_enabled:0", "aof_enabled:1");
    for (name, value) in fields {
        let is_other = |line: &&str| !line.starts_with(&format!("{name}:"));
        let kept: Vec<&str> = text.lines().filter(is_other).collect();
        text = format!("{}\r\n{name}:{value}\r\n", kept.join("\r\n"));
    }
    let all = GOOD.iter().chain(settings);
    let settings = all.map(|(name, value)| (*name, Ok((*value).to_owned())));
    NodeAnswers {
        says_what_it_is: true,
        connected_in: MS,
        stopped: None,
        round_trips: vec![MS, MS * 2, MS],
        clock: ClockReading {
            ahead_us: 0,
            error: MS,
        },
        info: Ok(Info::parse(&text)),
        settings: Settings(settings.collect()),
        work: Some(WorkAnswers {
            lacking: Ok(Vec::new()),
            absent: Vec::new(),
            scripts: Ok(()),
            message: Some(Ok(MS)),
        }),
        cluster: None,
    }
}

pub(super) fn node(name: &str, answers: NodeAnswers) -> NodeFacts {
    NodeFacts {
        address: name.to_owned(),
        role: NodeRole::Master,
        user: "billing".to_owned(),
        answers: Ok(answers),
    }
}

pub(super) fn facts(deployment: Deployment, nodes: Vec<NodeFacts>) -> Facts {
    Facts {
        deployment,
        sentinels: Vec::new(),
        nodes,
    }
}

pub(super) fn single(answers: NodeAnswers) -> Facts {
    facts(Deployment::Single, vec![node("a:1", answers)])
}

/// With the default numbers: a ttl of 10 s, T of 500 ms, P of 1 s.
pub(super) fn diagnosis_of(facts: &Facts) -> Diagnosis {
    diagnose(facts, &limits())
}

pub(super) fn limits() -> Limits {
    Limits {
        ttl: MS * 10_000,
        connect_timeout: MS * 500,
        command_timeout: MS * 500,
        check_period: MS * 1000,
        replica_acks: 0,
    }
}

/// The server, the check and the text of a finding, with its remedy.
pub(super) fn shown(finding: &Finding) -> String {
    let server = finding.server.as_deref().unwrap_or_default();
    let remedy = finding.remedy.as_deref().unwrap_or_default();
    format!("{server} {}: {}; {remedy}", finding.check, finding.message)
}

/// The findings of one check.
pub(super) fn of(diagnosis: &Diagnosis, check: Check) -> Vec<&Finding> {
    let findings = diagnosis.findings.iter();
    findings.filter(|finding| finding.check == check).collect()
}

/// One of the check's findings is of this level and has this text, and none is worse.
#[track_caller]
pub(super) fn assert_finds(diagnosis: &Diagnosis, check: Check, level: Level, text: &str) {
    let found = of(diagnosis, check);
    let worst = found.iter().map(|finding| finding.level).max();
    let has_text = |finding: &&Finding| finding.level == level && shown(finding).contains(text);
    assert!(
        worst == Some(level) && found.iter().any(has_text),
        "{check}, {level}, {text}: {found:#?}"
    );
}

#[test]
fn good_server_has_no_complaint() {
    for text in INFOS {
        let diagnosis = diagnosis_of(&single(answers(text, (&[], &[]))));
        assert_eq!(diagnosis.level(), Level::Ok, "{diagnosis:#?}");
        assert_eq!(diagnosis.findings.len(), 13, "{diagnosis:#?}");
        let bad = |finding: &&Finding| finding.remedy.is_some();
        assert_eq!(diagnosis.findings.iter().find(bad), None);
    }
    let valkey = diagnosis_of(&single(answers(INFOS[2], (&[], &[]))));
    assert_finds(&valkey, Check::Version, Level::Ok, "Valkey 9.1.2");
}

/// Each bad setting: what is found, and a word of the remedy.
#[test]
fn each_bad_setting_has_a_finding_with_its_remedy() {
    use Check::*;
    use Level::{Error, Ok, Warning};
    const FULL: (&str, &str) = ("maxmemory", "1000");
    let cases: &[(Change<'_>, Check, Level, &str)] = &[
        (
            (&[("maxmemory_policy", "allkeys-lru")], &[]),
            Eviction,
            Warning,
            "CONFIG SET maxmemory-policy noeviction",
        ),
        (
            (&[("maxmemory_policy", "volatile-ttl"), FULL], &[]),
            Eviction,
            Error,
            "noeviction",
        ),
        (
            (&[FULL, ("used_memory", "899")], &[]),
            Memory,
            Ok,
            "maxmemory",
        ),
        (
            (&[FULL, ("used_memory", "900")], &[]),
            Memory,
            Warning,
            "CONFIG SET maxmemory",
        ),
        (
            (&[FULL, ("used_memory", "1000")], &[]),
            Memory,
            Error,
            "OOM",
        ),
        (
            (
                &[
                    FULL,
                    ("used_memory", "1000"),
                    ("maxmemory_policy", "allkeys-lru"),
                ],
                &[],
            ),
            Memory,
            Warning,
            "maxmemory",
        ),
        (
            (&[("used_memory", "24000000000")], &[]),
            Memory,
            Warning,
            "the host has",
        ),
        ((&[("redis_version", "6.0.9")], &[]), Version, Error, "6.2"),
        (
            (
                &[
                    ("role", "slave"),
                    ("master_host", "h"),
                    ("master_port", "7"),
                ],
                &[],
            ),
            Role,
            Error,
            "redis://h:7",
        ),
        (
            (&[("role", "active-replica")], &[]),
            Role,
            Error,
            "the only master",
        ),
        (
            (&[("aof_enabled", "0")], &[]),
            Persistence,
            Warning,
            "appendonly yes",
        ),
        (
            (&[("aof_enabled", "0")], &[("save", "60 1")]),
            Persistence,
            Warning,
            "snapshots alone",
        ),
        (
            (&[], &[("appendfsync", "no")]),
            Persistence,
            Warning,
            "appendfsync everysec",
        ),
        (
            (&[], &[("appendfsync", "always")]),
            Persistence,
            Ok,
            "loses no lock",
        ),
        (
            (&[("rdb_last_bgsave_status", "err")], &[("save", "60 1")]),
            Persistence,
            Error,
            "MISCONF",
        ),
        (
            (&[("rdb_last_bgsave_status", "err")], &[]),
            Persistence,
            Warning,
            "BGSAVE",
        ),
        (
            (&[("aof_last_write_status", "err")], &[]),
            Persistence,
            Error,
            "MISCONF",
        ),
        (
            (&[("aof_last_bgrewrite_status", "err")], &[]),
            Persistence,
            Warning,
            "BGREWRITEAOF",
        ),
        (
            (&[("loading", "1")], &[]),
            Persistence,
            Error,
            "loads its data",
        ),
        (
            (&[], &[("timeout", "3")]),
            Clients,
            Warning,
            "CONFIG SET timeout 0",
        ),
        ((&[], &[("timeout", "4")]), Clients, Ok, "timeout is 4 s"),
        (
            (&[("connected_clients", "9000")], &[]),
            Clients,
            Warning,
            "maxclients",
        ),
        (
            (&[("connected_clients", "8999")], &[]),
            Clients,
            Ok,
            "8999 of 10000",
        ),
        (
            (&[], &[("lua-time-limit", "0")]),
            Scripts,
            Warning,
            "lua-time-limit 5000",
        ),
        (
            (
                &[],
                &[("client-output-buffer-limit", "pubsub 33554432 1000 60")],
            ),
            Messages,
            Warning,
            "1000 bytes",
        ),
        (
            (&[], &[("client-output-buffer-limit", "pubsub 0 0 0")]),
            Messages,
            Ok,
            "",
        ),
        (
            (
                &[("slave0", "ip=h,port=7,state=wait_bgsave,offset=0,lag=0")],
                &[("min-replicas-to-write", "0")],
            ),
            Replicas,
            Warning,
            "h:7",
        ),
        (
            (
                &[("slave0", "ip=h,port=7,state=online,offset=0,lag=5")],
                &[],
            ),
            Replicas,
            Warning,
            "5 s",
        ),
        (
            (&[], &[("min-replicas-to-write", "2")]),
            Replicas,
            Error,
            "NOREPLICAS",
        ),
        (
            (
                &[],
                &[
                    ("min-replicas-to-write", "2"),
                    ("min-replicas-max-lag", "0"),
                ],
            ),
            Replicas,
            Ok,
            "",
        ),
        (
            (
                &[("connected_slaves", "0")],
                &[("min-replicas-to-write", "0")],
            ),
            Replicas,
            Ok,
            "none",
        ),
    ];
    for (change, check, level, text) in cases {
        for info in INFOS {
            let diagnosis = diagnosis_of(&single(answers(info, *change)));
            assert_finds(&diagnosis, *check, *level, text);
            let others = diagnosis.findings.iter();
            let mut others = others.filter(|other| other.check != *check && other.level > Ok);
            let other = others.find(|other| !matches!(other.check, Eviction | Memory));
            assert_eq!(other, None, "{change:?}");
        }
    }
}
