//! Each rule, by the facts that break it.

use fairlock::servers::Deployment::{Cluster, Quorum, Sentinel, Single};

use super::derived::derive;
use super::facts::{Facts, Kind};
use super::rules::{Finding, Level, findings};

/// A server, a sentinel and all servers together, each as they should be.
const GOOD: [&str; 3] = [
    "ttl_ms=10000; timeout_ms=500; reply_ms=500; check_period_ms=1000; replica_acks=0; \
         is_tried=true; user=u; connect_ms=1; median_ms=1; slowest_ms=2; lock_ms=1; \
         hand_over_ms=1; redis_version=7.0.15; role=master; \
         redis_mode=standalone; connected_slaves=1; \
         slave0=ip=10.0.0.1,port=7001,state=online,offset=14,lag=1,type=replica; \
         maxmemory=0; maxmemory_human=0B; used_memory=100; used_memory_human=100B; \
         total_system_memory=1000; maxmemory_policy=noeviction; aof_enabled=1; \
         appendfsync=everysec; save=; stop_writes_on_bgsave_error=yes; connected_clients=1; \
         aof_last_bgrewrite_status=ok; \
         client_output_buffer_limit=normal 0 0 0 slave 1 1 60 pubsub 33554432 8388608 60; \
         master_host=h; master_port=7; maxclients=100; timeout=0; min_replicas_to_write=1; \
         lua_time_limit=5000; cluster_known_nodes=6; cluster_slots_assigned=16384; \
         cluster_slots_fail=0; cluster_state=ok; \
         cluster_require_full_coverage=no; master_link_status=up",
    "ttl_ms=10000; timeout_ms=500; user=u; master=h:1; num_other_sentinels=2; num_slaves=2; \
         down_after_milliseconds=1000; flags=master",
    "ttl_ms=10000; allowed_ms=102; sentinels=3; named=1; masters=h:1; servers=3; voting=3; \
         needed=2; ahead=a:1; behind=b:1; apart_ms=1; surely_apart_ms=0",
];

/// The deployment, what it is about, the facts that differ, the check, and its level.
const CASES: &[&str] = &[
    "single server | maxmemory_policy=volatile-ttl; maxmemory=1000 | eviction Error",
    "single server | maxmemory=100; used_memory=89 | memory Ok",
    "single server | maxmemory=100; used_memory=90; used_memory_human=90B | memory Warning",
    "single server | maxmemory=100; maxmemory_human=100B | memory Error",
    "single server | used_memory=900; used_memory_human=900B | memory Warning",
    "single server | redis_version=6.0.9 | version Error",
    "single server | redis_version=?; INFO=? | version Warning",
    "sentinel replica | master_link_status=down | role Warning",
    "sentinel replica | maxmemory=1000; maxmemory_policy=allkeys-lru | eviction Warning",
    "single server | redis_version=10.1 | version Ok",
    "single server | role=slave | role Error",
    "single server | role=active-replica | role Error",
    "quorum server | aof_enabled=0 | persistence Ok",
    "single server | appendfsync=no | persistence Warning",
    "single server | rdb_last_bgsave_status=err | persistence Warning",
    "single server | rdb_last_bgsave_status=err; save=60 1 | persistence Error",
    "single server | aof_last_bgrewrite_status=err | persistence Warning",
    "single server | timeout=3 | clients Warning",
    "single server | timeout=4 | clients Ok",
    "single server | connected_clients=89 | clients Ok",
    "single server | connected_clients=90 | clients Warning",
    "single server | lock=OOM; lock_remedy=more | scripts Error",
    "single server | lock_ms=? | scripts Warning",
    "single server | client_output_buffer_limit=pubsub 33554432 1000 60 | messages Warning",
    "single server | client_output_buffer_limit=pubsub 0 0 0 | messages Ok",
    "single server | hand_over_ms=900 | messages Warning",
    "single server | hand_over=NOPERM; hand_over_remedy=rule | messages Error",
    "single server | lacking=+hdel | rights Error",
    "single server | absent=SCAN | rights Warning",
    "single server | stopped=timed out | connection Error",
    "single server | connect_ms=250 | connection Warning",
    "single server | slowest_ms=49 | round_trip Ok",
    "single server | slowest_ms=50 | round_trip Warning",
    "single server | slowest_ms=250 | round_trip Error",
    "single server | slave0=ip=h,port=7,state=wait_bgsave,lag=0 | replicas Warning",
    "single server | slave0=ip=h,port=7,state=online,lag=5 | replicas Warning",
    "single server | replica_acks=2 | replicas Error",
    "single server | min_replicas_to_write=0 | replicas Ok",
    "sentinel server | min_replicas_to_write=0 | replicas Warning",
    "sentinel server | min_replicas_to_write=0; replica_acks=1 | replicas Ok",
    "cluster server | slave0=; connected_slaves=0; min_replicas_to_write=0 | replicas Warning",
    "cluster server | cluster_slots_assigned=16383 | cluster Error",
    "cluster server | amiss=h:1(noaddr) | cluster Warning",
    "cluster server | cluster_require_full_coverage=yes | cluster Warning",
    "sentinel sentinel | master=? | sentinels Error",
    "sentinel sentinel | flags=s_down,master | sentinels Error",
    "sentinel sentinel | num_other_sentinels=1 | sentinels Warning",
    "sentinel sentinel | down_after_milliseconds=499 | sentinels Warning",
    "sentinel sentinel | down_after_milliseconds=6700 | sentinels Warning",
    "sentinel all | named=2; masters=h:1 h:2 | sentinels Error",
    "sentinel all | sentinels=1 | sentinels Warning",
    "sentinel all | apart_ms=104; surely_apart_ms=103 | clocks Warning",
    "cluster all | apart_ms=10001; surely_apart_ms=10000 | clocks Error",
    "quorum all | voting=2 | majority Warning",
    "quorum all | voting=1 | majority Error",
];

/// Good facts, but for these. `?` is not known.
fn facts(deployment: &str, about: &str, changes: &str) -> Facts {
    let mut facts = Facts::new(match deployment {
        "single" => Single,
        "sentinel" => Sentinel,
        "cluster" => Cluster,
        _ => Quorum,
    });
    let (kind, good) = match about {
        "replica" => (Kind::Replica, GOOD[0]),
        "server" => (Kind::Master, GOOD[0]),
        "sentinel" => (Kind::Sentinel, GOOD[1]),
        _ => (Kind::All, GOOD[2]),
    };
    facts.kind = kind;
    for fact in good.split("; ").chain(changes.split("; ")) {
        match fact.split_once('=') {
            Some((name, "?")) => facts.set_unknown(name, "the server has no such thing"),
            Some((name, value)) => facts.set(name, value),
            None => assert_eq!(fact, ""),
        }
    }
    derive(&mut facts);
    facts
}

fn worst(findings: &[Finding], check: &str) -> Option<Level> {
    let found = findings.iter().filter(|finding| finding.check == check);
    found.map(|finding| finding.level).max()
}

#[test]
fn each_bad_fact_has_a_finding_with_a_remedy() {
    for case in CASES {
        let [subject, changes, expected] = case.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{case}");
        };
        let (deployment, about) = subject.split_once(' ').expect(case);
        let (check, level) = expected.split_once(' ').expect(case);
        let good = findings(&facts(deployment, about, ""));
        let is_good = good
            .iter()
            .all(|one| one.level == Level::Ok && one.remedy.is_none());
        assert!(is_good, "{good:#?}");
        let found = findings(&facts(deployment, about, changes));
        let worst = worst(&found, check).map(|level| format!("{level:?}"));
        assert_eq!(worst.as_deref(), Some(level), "{case}: {found:#?}");
        for finding in &found {
            let is_bad = finding.level > Level::Ok;
            assert_eq!(finding.remedy.is_some(), is_bad, "{case}: {finding:#?}");
            assert!(!is_bad || finding.check == check, "{case}: {finding:#?}");
            let is_told = good.iter().all(|one| one.message != finding.message);
            assert!(!is_bad || is_told, "{case}: {finding:#?}");
            let is_known = !format!("{finding:?}").contains("not known");
            assert!(is_known || changes.contains('?'), "{case}: {finding:#?}");
        }
    }
}
