//! The checks of sentinels.

use std::collections::HashMap;

use super::answer::Unknown;
use super::facts::{Deployment, Facts, SentinelAnswers, SentinelFacts};
use super::set_tests::failed;
use super::tests::{INFOS, answers, assert_finds, diagnosis_of, facts, node};
use super::{Check, Diagnosis, Level};

fn sentinel(name: &str, master: Option<&str>, fields: &[(&str, &str)]) -> SentinelFacts {
    let good = [
        ("flags", "master"),
        ("quorum", "2"),
        ("num-slaves", "2"),
        ("num-other-sentinels", "2"),
        ("down-after-milliseconds", "1000"),
        ("failover-timeout", "60000"),
    ];
    let fields = good.iter().chain(fields);
    let fields = fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    SentinelFacts {
        address: name.to_owned(),
        user: "finder".to_owned(),
        answers: Ok(SentinelAnswers {
            master: Ok(master.map(str::to_owned)),
            fields: Ok(fields.collect::<HashMap<_, _>>()),
            can_agree: Err(Unknown::NoRight("SENTINEL CKQUORUM")),
        }),
    }
}

fn watched_by(sentinels: Vec<SentinelFacts>) -> Diagnosis {
    let node = node("a:1", answers(INFOS[1], (&[], &[])));
    diagnosis_of(&Facts {
        sentinels,
        ..facts(Deployment::Sentinel, vec![node])
    })
}

#[test]
fn sentinels_must_agree_and_act_in_time() {
    use Level::{Error, Ok, Warning};
    let good = || sentinel("s:1", Some("a:1"), &[]);
    assert_finds(
        &watched_by(vec![good(), good()]),
        Check::Sentinels,
        Ok,
        "2 of 2 name a:1",
    );
    let other = sentinel("s:2", Some("b:1"), &[]);
    let disagreeing = watched_by(vec![good(), other]);
    assert_finds(
        &disagreeing,
        Check::Sentinels,
        Error,
        "s:1 names a:1, s:2 names b:1",
    );
    assert_finds(
        &watched_by(vec![good()]),
        Check::Sentinels,
        Warning,
        "one sentinel",
    );
    let none = sentinel("s:2", None, &[]);
    assert_finds(
        &watched_by(vec![good(), none]),
        Check::Sentinels,
        Error,
        "does not watch",
    );
    for (field, level, text) in [
        (("flags", "s_down,master"), Error, "is down"),
        (("num-other-sentinels", "1"), Warning, "fewer than three"),
        (("num-slaves", "0"), Warning, "no replica"),
        (
            ("down-after-milliseconds", "499"),
            Warning,
            "down-after-milliseconds 1000",
        ),
        (("down-after-milliseconds", "500"), Ok, ""),
        (("down-after-milliseconds", "6666"), Ok, ""),
        (
            ("down-after-milliseconds", "6667"),
            Warning,
            "are lost before",
        ),
        (("failover-timeout", "999"), Warning, "failover-timeout"),
    ] {
        let watched = watched_by(vec![good(), sentinel("s:2", Some("a:1"), &[field])]);
        assert_finds(&watched, Check::Sentinels, level, text);
    }
    let mut refusing = good();
    if let Result::Ok(answers) = &mut refusing.answers {
        answers.master = Err(Unknown::NoRight("SENTINEL MASTER"));
        answers.can_agree = Result::Ok(Err("NOQUORUM 1 usable".to_owned()));
    }
    let refused = watched_by(vec![good(), refusing]);
    assert_finds(
        &refused,
        Check::Sentinels,
        Error,
        "ACL SETUSER finder +sentinel|",
    );
    assert_finds(&refused, Check::Sentinels, Error, "NOQUORUM 1 usable");
    let able = |can_agree: Result<(), String>| {
        let mut sentinel = good();
        if let Result::Ok(answers) = &mut sentinel.answers {
            answers.can_agree = Result::Ok(can_agree);
        }
        sentinel
    };
    let watched = watched_by(vec![able(Err("NOQUORUM".to_owned())), able(Result::Ok(()))]);
    assert_finds(&watched, Check::Sentinels, Warning, "cannot lead");
    // The others go on without it.
    let silent = SentinelFacts {
        answers: Err(failed("silent")),
        ..good()
    };
    assert_finds(
        &watched_by(vec![good(), silent]),
        Check::Sentinels,
        Warning,
        "silent",
    );
}

#[test]
fn sentinel_that_refuses_either_question_is_an_error() {
    let with = |fields: Unknown| {
        let mut other = sentinel("s:2", Some("a:1"), &[]);
        if let Ok(answers) = &mut other.answers {
            answers.fields = Err(fields);
        }
        watched_by(vec![sentinel("s:1", Some("a:1"), &[]), other])
    };
    let rule = "ACL SETUSER finder +sentinel|get-master-addr-by-name +sentinel|master";
    let refused = with(Unknown::NoRight("SENTINEL MASTER"));
    assert_finds(&refused, Check::Sentinels, Level::Error, rule);
    let failed = with(Unknown::Failed("ERR why".to_owned()));
    assert_finds(
        &failed,
        Check::Sentinels,
        Level::Ok,
        "s:2 sentinels: not known: ERR why",
    );
}

/// People read them in this order, and programs may rely on it.
#[test]
fn findings_come_in_a_fixed_order() {
    let nodes = ["a:1", "b:1"].map(|name| node(name, answers(INFOS[1], (&[], &[]))));
    let diagnosis = diagnosis_of(&Facts {
        sentinels: vec![sentinel("s:1", Some("a:1"), &[])],
        ..facts(Deployment::Sentinel, nodes.into())
    });
    let servers: Vec<_> = diagnosis
        .findings
        .iter()
        .map(|f| f.server.as_deref())
        .collect();
    let mut runs = servers.clone();
    runs.dedup();
    assert_eq!(runs, [None, Some("s:1"), Some("a:1"), Some("b:1")]);
    for server in ["a:1", "b:1"] {
        let of_server = diagnosis.findings.iter();
        let of_server = of_server.filter(|f| f.server.as_deref() == Some(server));
        let checks: Vec<Check> = of_server.map(|f| f.check).collect();
        assert!(checks.is_sorted(), "{checks:?}");
    }
}
