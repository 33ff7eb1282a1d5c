//! Facts that follow from others.

use fairlock::servers::Deployment::{Cluster, Quorum, Sentinel};

use super::facts::{Facts, Kind};

/// A replica acknowledges once per second. One that has not done so for this long is behind.
const LAG_S: f64 = 5.0;

/// Adds what follows from the answers of one server.
pub(super) fn derive(f: &mut Facts) {
    f.set("roomy_ms", f.num("slowest_ms") * 11.0);
    let version = f.text("redis_version").splitn(3, '.').take(2);
    f.set("major_minor", version.collect::<Vec<_>>().join("."));
    if f.has("valkey_version") {
        f.set("product", format!("Valkey {}", f.text("valkey_version")));
    } else if f.has("redis_version") {
        f.set("product", format!("Redis {}", f.text("redis_version")));
    }
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
    if f.kind == Kind::Master {
        replicas(f);
    }
    let loses = match (f.text("aof_enabled"), f.text("appendfsync")) {
        ("0", _) => "no append-only file: a restart loses all locks since the last snapshot",
        ("1", "always") => "appendfsync always: a restart loses no lock",
        ("1", "everysec") => "appendfsync everysec: a crash may lose the last two seconds",
        ("1", "no") => "appendfsync no: a crash may lose the locks of the last half minute",
        ("1", _) => "appendonly yes: a restart keeps locks; appendfsync is not known",
        _ => return,
    };
    f.set("loses", loses);
}

/// The replicas of a master, by lines such as
/// `slave0:ip=10.0.0.1,port=6379,state=online,offset=14,lag=0`.
fn replicas(f: &mut Facts) {
    // Without INFO, nobody knows.
    if !f.has("connected_slaves") {
        return;
    }
    let (mut online, mut good) = (0, 0);
    for number in 0..1000 {
        let line = f.text(&format!("slave{number}")).to_owned();
        let field = |name| line.split(',').find_map(|pair| pair.strip_prefix(name));
        let (Some(host), Some(port)) = (field("ip="), field("port=")) else {
            break;
        };
        if matches!(f.deployment, Sentinel | Cluster) {
            f.add("replica_addresses", &format!("{host}:{port}"));
        }
        let (state, lag) = (field("state=").unwrap_or_default(), field("lag="));
        let lag: f64 = lag.and_then(|lag| lag.parse().ok()).unwrap_or(0.0);
        let is_online = state == "online";
        online += u32::from(is_online);
        good += u32::from(is_online && lag <= f.num("min_replicas_max_lag"));
        if !is_online || lag >= LAG_S {
            f.add("late", &format!("{host}:{port}({state},lag={lag}s)"));
        }
    }
    f.set("online", online);
    f.set("good_replicas", good);
}

/// Adds what follows from all answers. The first facts are those about all servers.
pub(super) fn together(facts: &mut [Facts]) {
    let (all, each) = facts.split_first_mut().expect("the facts about all");
    let count = |is: &dyn Fn(&Facts) -> bool| each.iter().filter(|f| is(f)).count();
    let is_good = |f: &Facts| !f.has("failure");
    // A server that has just started may have forgotten its locks.
    let is_young = |f: &Facts| f.num("uptime_in_seconds") * 1000.0 - 1000.0 < f.num("ttl_ms");
    let majority = each.len() / 2 + 1;
    all.set("servers", each.len());
    all.set("needed", majority);
    all.set("voting", count(&|f| is_good(f) && !is_young(f)));
    all.set("sentinels", count(&|f| f.kind == Kind::Sentinel));
    let is_spared = all.deployment == Quorum && count(&is_good) >= majority;
    let clocks = || each.iter().filter(|f| f.has("ahead_ms"));
    let order = |one: &&Facts, by: &&Facts| one.num("ahead_ms").total_cmp(&by.num("ahead_ms"));
    if let (Some(behind), Some(ahead)) = (clocks().min_by(order), clocks().max_by(order)) {
        let apart = ahead.num("ahead_ms") - behind.num("ahead_ms");
        let error = ahead.num("error_ms") + behind.num("error_ms");
        all.set("apart_ms", apart);
        all.set("surely_apart_ms", apart - error);
        all.set("ahead", ahead.server.as_deref().unwrap_or_default());
        all.set("behind", behind.server.as_deref().unwrap_or_default());
    }
    all.set("masters", "");
    for f in each {
        if f.kind == Kind::Sentinel && f.has("master") {
            all.add("masters", f.text("master"));
        }
        f.set("is_spared", is_spared);
    }
    all.set("named", all.words("masters").count());
}
