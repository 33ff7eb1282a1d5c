//! The checks of several servers together.

use std::collections::HashMap;

use super::super::fault::Fault;
use super::answer::{Info, Unknown};
use super::facts::{
    ClockReading, ClusterAnswers, Deployment, Facts, NodeFacts, NodeRole, SentinelAnswers,
    SentinelFacts,
};
use super::tests::{
    Change, INFOS, MS, answers, assert_finds, diagnosis_of, facts, limits, node, of,
};
use super::{Check, Diagnosis, Finding, Level, Limits, diagnose};

#[test]
fn replicas_must_be_there_for_acks_and_failovers() {
    let none: Change<'_> = (
        &[("connected_slaves", "0")],
        &[("min-replicas-to-write", "0")],
    );
    let unbounded: Change<'_> = (&[], &[("min-replicas-to-write", "0")]);
    let acks = |wanted| Limits {
        replica_acks: wanted,
        ..limits()
    };
    for (deployment, change, wanted, level, text) in [
        (
            Deployment::Sentinel,
            none,
            0,
            Level::Warning,
            "nothing takes over",
        ),
        (Deployment::Cluster, none, 0, Level::Warning, "add-node"),
        (
            Deployment::Sentinel,
            unbounded,
            0,
            Level::Warning,
            "CONFIG SET min-replicas-to-write 1",
        ),
        (Deployment::Single, unbounded, 0, Level::Ok, "1 in sync"),
        // A master that is cut off grants nothing then.
        (
            Deployment::Sentinel,
            unbounded,
            1,
            Level::Ok,
            "replica_acks wants 1",
        ),
        (
            Deployment::Single,
            unbounded,
            2,
            Level::Error,
            "no lock can be taken",
        ),
    ] {
        let nodes = vec![node("a:1", answers(INFOS[1], change))];
        let diagnosis = diagnose(&facts(deployment, nodes), &acks(wanted));
        assert_finds(&diagnosis, Check::Replicas, level, text);
    }
}

fn with_clocks(deployment: Deployment, ahead_ms: [i64; 3]) -> Facts {
    let nodes = ahead_ms.into_iter().map(|ms| {
        let mut answers = answers(INFOS[1], (&[], &[]));
        answers.clock = ClockReading {
            ahead_us: ms * 1000,
            error: MS,
        };
        node(&format!("h:{ms}"), answers)
    });
    facts(deployment, nodes.collect())
}

/// 1 % of the ttl and 2 ms are 102 ms; the error of two readings is 2 ms.
#[test]
fn clocks_are_compared_with_each_other() {
    use Deployment::{Cluster, Quorum, Sentinel};
    for (deployment, last, level, text) in [
        (Sentinel, 104, Level::Ok, "102.0ms does no harm"),
        (
            Sentinel,
            105,
            Level::Warning,
            "h:105 is 115.0ms ahead of that of h:-10",
        ),
        (Cluster, 105, Level::Warning, "NTP"),
        (Cluster, 11_000, Level::Error, "NTP"),
        (Quorum, 4900, Level::Ok, "5.0s"),
        (Quorum, 5100, Level::Warning, "NTP"),
        (Quorum, 10_100, Level::Error, "no vote"),
    ] {
        let first = if text.contains("115") { -10 } else { 0 };
        let diagnosis = diagnosis_of(&with_clocks(deployment, [0, first, last]));
        assert_finds(&diagnosis, Check::Clocks, level, text);
        // No client's clock counts.
        assert_finds(
            &diagnosis,
            Check::Clock,
            Level::Ok,
            "no client's clock counts",
        );
    }
    let single = diagnosis_of(&with_clocks(Deployment::Single, [0, 0, 99_000]));
    assert_eq!(of(&single, Check::Clocks), Vec::<&Finding>::new());
}

fn failed(why: &str) -> Fault {
    Fault::Unfit(why.to_owned())
}

fn silent(name: &str) -> NodeFacts {
    NodeFacts {
        answers: Err(failed("a silent one")),
        ..node(name, answers(INFOS[1], (&[], &[])))
    }
}

#[test]
fn silent_server_is_an_error_unless_locks_go_on_without_it() {
    let good = || {
        node(
            "a:1",
            answers(INFOS[1], (&[("uptime_in_seconds", "99")], &[])),
        )
    };
    let of_three = |silent_ones: usize| {
        let nodes = (0..3).map(|n| {
            if n < silent_ones {
                silent("s:1")
            } else {
                good()
            }
        });
        diagnosis_of(&facts(Deployment::Quorum, nodes.collect()))
    };
    let one_away = of_three(1);
    assert_finds(&one_away, Check::Majority, Level::Warning, "2 of 3");
    assert_eq!(one_away.level(), Level::Warning, "{one_away:#?}");
    let two_away = of_three(2);
    assert_finds(
        &two_away,
        Check::Majority,
        Level::Error,
        "no lock can be taken",
    );
    assert_finds(&two_away, Check::Connection, Level::Error, "a silent one");
    let mut replica = silent("r:1");
    replica.role = NodeRole::Replica;
    let nodes = vec![good(), replica];
    let diagnosis = diagnosis_of(&facts(Deployment::Sentinel, nodes));
    assert_eq!(diagnosis.level(), Level::Warning, "{diagnosis:#?}");
    let diagnosis = diagnosis_of(&facts(Deployment::Cluster, vec![good(), silent("s:1")]));
    assert_finds(&diagnosis, Check::Connection, Level::Error, "a silent one");
}

#[test]
fn young_servers_have_no_vote() {
    let aged = |seconds| {
        node(
            "a:1",
            answers(INFOS[1], (&[("uptime_in_seconds", seconds)], &[])),
        )
    };
    let of_ages = |ages: [&'static str; 3]| {
        let nodes = ages.into_iter().map(aged).collect();
        diagnosis_of(&facts(Deployment::Quorum, nodes))
    };
    // The server may count one second too many.
    let one = of_ages(["99", "99", "10"]);
    assert_finds(&one, Check::Majority, Level::Warning, "wait for 1s");
    let two = of_ages(["99", "4", "3"]);
    assert_finds(&two, Check::Majority, Level::Error, "wait for 8s");
    let voting = of_ages(["99", "99", "99"]);
    assert_finds(&voting, Check::Majority, Level::Ok, "3 of 3");
    assert_finds(
        &voting,
        Check::Persistence,
        Level::Ok,
        "no vote for one ttl",
    );
    let always = node(
        "a:1",
        answers(INFOS[1], (&[], &[("appendfsync", "always")])),
    );
    let diagnosis = diagnosis_of(&facts(Deployment::Quorum, vec![always]));
    assert_finds(&diagnosis, Check::Persistence, Level::Ok, "loses no lock");
}

#[test]
fn server_at_two_addresses_has_one_vote() {
    let with_id = |name: &str, id: &str| {
        let fields = [("run_id", id), ("uptime_in_seconds", "99")];
        node(name, answers(INFOS[1], (&fields, &[])))
    };
    let of_ids = |ids: [&str; 3]| {
        let names = ["a:1", "b:1", "c:1"].into_iter().zip(ids);
        let nodes = names.map(|(name, id)| with_id(name, id)).collect();
        diagnosis_of(&facts(Deployment::Quorum, nodes))
    };
    let twins = of_ids(["1f", "2f", "1f"]);
    let text = "a:1 and c:1 are the same server";
    assert_finds(&twins, Check::Majority, Level::Error, text);
    assert_finds(&of_ids(["1f", "2f", "3f"]), Check::Majority, Level::Ok, "");
    // A service may hide it.
    assert_finds(&of_ids(["0", "0", "0"]), Check::Majority, Level::Ok, "");
}

#[test]
fn replica_is_never_an_error() {
    let mut spare = node("r:1", answers(INFOS[1], (&[("loading", "1")], &[])));
    spare.role = NodeRole::Replica;
    let diagnosis = diagnosis_of(&facts(Deployment::Sentinel, vec![spare]));
    assert_finds(
        &diagnosis,
        Check::Persistence,
        Level::Warning,
        "loads its data",
    );
    let lost = [("role", "slave"), ("master_link_status", "down")];
    let mut spare = node("r:1", answers(INFOS[1], (&lost, &[])));
    spare.role = NodeRole::Replica;
    let diagnosis = diagnosis_of(&facts(Deployment::Sentinel, vec![spare]));
    assert_finds(&diagnosis, Check::Role, Level::Warning, "lost its master");
}

/// `CLUSTER INFO` and `CLUSTER NODES` of 7.0.15, shortened.
fn cluster(info: &[(&str, &str)], nodes: &str, coverage: &'static str) -> Diagnosis {
    let mut text = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n\
                    cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:6\r\n"
        .to_owned();
    for (name, value) in info {
        text += &format!("{name}:{value}\r\n");
    }
    let mut answers = answers(
        INFOS[1],
        (&[], &[("cluster-require-full-coverage", coverage)]),
    );
    answers.cluster = Some(ClusterAnswers {
        info: Ok(Info::parse(&text)),
        nodes: Ok(nodes.to_owned()),
    });
    diagnosis_of(&facts(Deployment::Cluster, vec![node("a:1", answers)]))
}

#[test]
fn state_of_the_cluster_is_judged() {
    use Level::{Error, Ok, Warning};
    const MYSELF: &str = "07c3 :7000@17000 myself,master - 0 0 1 connected 0-5460\n";
    let node = |place: &str, flags: &str| {
        format!("{MYSELF}67ed {place}@17001 {flags} - 0 1426238316232 2 connected 5461-10922\n")
    };
    let good = node("127.0.0.1:7001", "master");
    assert_finds(
        &cluster(&[], &good, "no"),
        Check::Cluster,
        Ok,
        "6 nodes known",
    );
    for (info, level, text) in [
        (("cluster_state", "fail"), Error, "CLUSTERDOWN"),
        (
            ("cluster_slots_assigned", "16380"),
            Error,
            "4 slots belong to nobody",
        ),
        (("cluster_slots_fail", "9"), Error, "9 slots is down"),
        (("cluster_slots_pfail", "9"), Warning, "does not answer"),
    ] {
        assert_finds(&cluster(&[info], &good, "no"), Check::Cluster, level, text);
    }
    let covered = cluster(&[], &good, "yes");
    let remedy = "CONFIG SET cluster-require-full-coverage no";
    assert_finds(&covered, Check::Cluster, Warning, remedy);
    for (place, flags, level, text) in [
        (
            "127.0.0.1:7001",
            "master,fail",
            Warning,
            "127.0.0.1:7001 is down",
        ),
        (
            "127.0.0.1:7001",
            "slave,fail?",
            Warning,
            "does not answer this node",
        ),
        (":0", "master,noaddr", Warning, "CLUSTER MEET"),
        ("127.0.0.1:7001", "noaddr", Warning, "CLUSTER MEET"),
        (":7001", "master", Warning, "no address"),
        ("127.0.0.1:7001", "handshake", Ok, ""),
        // It begins with a colon, as an address without a host does.
        ("::1:7001", "master", Ok, ""),
    ] {
        let diagnosis = cluster(&[], &node(place, flags), "no");
        assert_finds(&diagnosis, Check::Cluster, level, text);
    }
}

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
