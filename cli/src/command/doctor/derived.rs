//! Facts that follow from others.

use fairlock::servers::Deployment::{Cluster, Quorum, Sentinel};

use super::facts::{Facts, Kind};

/// A replica acknowledges once per second. One that has not done so for this long is behind.
const LAG_S: f64 = 5.0;

/// Adds what follows from the answers of one server.
pub(super) fn derive(f: &mut Facts) {
    let version = f.text("redis_version").splitn(3, '.').take(2);
    f.set("major_minor", version.collect::<Vec<_>>().join("."));
    // Without a limit of its own, it has that of its host.
    let (limit, host) = (f.num("maxmemory"), f.num("total_system_memory"));
    let limit = if limit > 0.0 { limit } else { host };
    f.set("memory_share", f.num("used_memory") / limit);
    let limits = f.text("client_output_buffer_limit").split_once("pubsub ");
    let limits = limits.map_or("", |(_, limits)| limits).split(' ').take(2);
    // 0 is no limit.
    let limits = limits.filter_map(|limit| limit.parse().ok().filter(|limit| *limit > 0.0));
    f.set("pubsub_limit", limits.fold(f64::NAN, f64::min));
    let unassigned = 16_384.0 - f.num("cluster_slots_assigned");
    f.set("unserved_slots", unassigned + f.num("cluster_slots_fail"));
    // Without INFO, nobody knows.
    if f.kind == Kind::Master && f.has("connected_slaves") {
        replicas(f);
    }
}

/// The replicas of a master, by lines such as
/// `slave0:ip=10.0.0.1,port=6379,state=online,offset=14,lag=0`.
fn replicas(f: &mut Facts) {
    let mut online = 0;
    let lines = (0..).map(|number| f.text(&format!("slave{number}")).to_owned());
    for line in lines
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
    {
        let field = |name| line.split(',').find_map(|pair| pair.strip_prefix(name));
        let field = |name| field(name).unwrap_or_default();
        let address = format!("{}:{}", field("ip="), field("port="));
        if matches!(f.deployment, Sentinel | Cluster) {
            f.add("replica_addresses", &address);
        }
        let (state, lag) = (field("state="), field("lag="));
        online += u32::from(state == "online");
        if state != "online" || lag.parse().is_ok_and(|lag: f64| lag >= LAG_S) {
            f.add("late", &format!("{address}({state},lag={lag}s)"));
        }
    }
    f.set("online", online);
}

/// Adds what follows from all answers. The first facts are those about all servers.
pub(super) fn together(facts: &mut [Facts]) {
    let (all, each) = facts.split_first_mut().expect("the facts about all");
    let count = |is: &dyn Fn(&Facts) -> bool| each.iter().filter(|f| is(f)).count();
    let answers = |f: &Facts| !f.has("failure");
    // A server that has just started may have forgotten its locks.
    let is_young = |f: &Facts| f.num("uptime_in_seconds") * 1000.0 - 1000.0 < f.num("ttl_ms");
    let majority = each.len() / 2 + 1;
    all.set("servers", each.len());
    all.set("needed", majority);
    all.set("voting", count(&|f| answers(f) && !is_young(f)));
    all.set("sentinels", count(&|f| f.kind == Kind::Sentinel));
    let is_spared = all.deployment == Quorum && count(&answers) >= majority;
    let mut clocks: Vec<&Facts> = each.iter().filter(|f| f.has("ahead_ms")).collect();
    clocks.sort_by(|one, other| one.num("ahead_ms").total_cmp(&other.num("ahead_ms")));
    if let (Some(behind), Some(ahead)) = (clocks.first(), clocks.last()) {
        let apart = ahead.num("ahead_ms") - behind.num("ahead_ms");
        let error = ahead.num("error_ms") + behind.num("error_ms");
        all.set("apart_ms", apart);
        all.set("surely_apart_ms", apart - error);
        all.set("ahead", ahead.server.as_deref().unwrap_or_default());
        all.set("behind", behind.server.as_deref().unwrap_or_default());
    }
    all.set("masters", "");
    for f in each {
        all.add("masters", f.text("master"));
        f.set("is_spared", is_spared);
    }
    all.set("named", all.words("masters").count());
}
