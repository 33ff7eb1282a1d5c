//! The checks of several servers together.

use super::super::fault::Fault;
use super::answer::Info;
use super::facts::{ClockReading, ClusterAnswers, Deployment, Facts, NodeFacts, NodeRole};
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

pub(super) fn failed(why: &str) -> Fault {
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
