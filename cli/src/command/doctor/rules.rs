//! All rules: what is good, what is not, and what to do about it.
//!
//! They are in the order in which findings are shown. A check says for which servers it is made,
//! and what is shown of them. The rules behind it have the remedies of what they find. What is not
//! known breaks no rule.

use fairlock::servers::Deployment::{self, Cluster, Quorum, Sentinel, Single};

use serde::Serialize;

use super::facts::{Facts, Kind};

/// The outcome of one check, of one server or of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// docs/COMMAND_LINE.md describes each check.
    pub(super) check: &'static str,
    pub(super) level: Level,
    /// The server's host and port, or its unix socket. `None` if the finding is about all servers.
    pub(super) server: Option<String>,
    /// One line.
    pub(super) message: String,
    /// The command or the setting that improves it. `None` if nothing needs to be improved.
    pub(super) remedy: Option<String>,
}

/// How good a finding is. The worst level is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be. Or it could not be asked, and nothing says that it is wrong.
    Ok,
    /// Locks work now. They may be lost or refused when something else fails.
    Warning,
    /// Locks do not work, or a server may lose one that is held.
    Error,
}

type Condition = fn(&Facts) -> bool;

struct Rule {
    /// Empty: the check of the rule before it.
    check: &'static str,
    applies: Condition,
    warns: Condition,
    fails: Condition,
    /// Facts have their names in braces. Empty: the text of the check.
    text: &'static str,
    remedy: &'static str,
}

const fn check(check: &'static str, applies: Condition) -> Rule {
    Rule {
        check,
        applies,
        warns: |_| false,
        fails: |_| false,
        text: "",
        remedy: "",
    }
}

const fn warning(is_bad: Condition) -> Rule {
    check("", |_| true).warns(is_bad)
}

const fn error(is_bad: Condition) -> Rule {
    check("", |_| true).fails(is_bad)
}

impl Rule {
    const fn warns(self, warns: Condition) -> Rule {
        Rule { warns, ..self }
    }

    const fn fails(self, fails: Condition) -> Rule {
        Rule { fails, ..self }
    }

    const fn says(self, text: &'static str) -> Rule {
        Rule { text, ..self }
    }

    const fn remedy(self, remedy: &'static str) -> Rule {
        Rule { remedy, ..self }
    }
}

/// The findings about one server, or about all of them. At least one for each check that is made.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let rules = match facts.has("failure") {
        true => &RULES[..1],
        false => &RULES[1..],
    };
    let mut findings: Vec<Finding> = Vec::new();
    let mut check = &rules[0];
    for rule in rules {
        if !rule.check.is_empty() {
            check = rule;
        }
        let level = match ((rule.fails)(facts), (rule.warns)(facts)) {
            // Without a replica, locks go on as long as its master lives.
            (true, _) if facts.kind != Kind::Replica => Level::Error,
            (false, false) => Level::Ok,
            _ => Level::Warning,
        };
        if !(check.applies)(facts) || level == Level::Ok && rule.check.is_empty() {
            continue;
        }
        // A broken rule takes the place of what is good.
        findings.pop_if(|last| last.check == check.check && last.level == Level::Ok);
        let text = if rule.text.is_empty() {
            check.text
        } else {
            rule.text
        };
        let mut remedy = facts.fill(rule.remedy);
        if remedy.contains("CONFIG SET ") {
            remedy += ". CONFIG REWRITE keeps that over a restart";
        }
        findings.push(Finding {
            check: check.check,
            level,
            server: facts.server.clone(),
            message: facts.fill(text),
            remedy: (level > Level::Ok).then_some(remedy),
        });
    }
    findings
}

fn is_server(f: &Facts) -> bool {
    matches!(f.kind, Kind::Master | Kind::Replica)
}

fn is_tried(f: &Facts) -> bool {
    f.kind == Kind::Master && f.is("is_tried", "true")
}

/// Said once for all servers of such a deployment.
fn is_all(f: &Facts, deployment: Deployment) -> bool {
    f.kind == Kind::All && f.deployment == deployment
}

/// A server of a quorum has none.
fn has_replicas(f: &Facts) -> bool {
    f.kind == Kind::Master && f.deployment != Quorum && !f.is("role", "slave")
}

fn keeps_slots(f: &Facts) -> bool {
    f.kind == Kind::Master && f.deployment == Cluster
}

/// Every lock has a TTL, so the policies `volatile-*` take locks as `allkeys-*` do.
fn evicts(f: &Facts) -> bool {
    f.has("maxmemory_policy") && !f.is("maxmemory_policy", "noeviction")
}

/// By default a failed snapshot has writes refused.
fn refuses_unsaved(f: &Facts) -> bool {
    f.is("stop_writes_on_bgsave_error", "yes") && f.has("save") && !f.is("save", "")
}

fn is_unbounded(f: &Facts) -> bool {
    let bound = f.num("min_replicas_to_write") + f.num("replica_acks");
    matches!(f.deployment, Sentinel | Cluster) && bound == 0.0 && f.num("online") > 0.0
}

/// The server answers, but neither the lock nor an error came in time.
fn is_slow_to_lock(f: &Facts) -> bool {
    let has_ended = f.has("lock_ms") || f.has("lock");
    f.deployment != Quorum && f.has("median_ms") && !has_ended
}

const RULES: &[Rule] = &[
    // Nothing else is known about a server that does not answer, or refuses every command.
    check("connection", |_| true)
        .fails(|f| f.kind != Kind::Sentinel && !f.is("is_spared", "true"))
        .warns(|_| true)
        .says("{failure}")
        .remedy("{failure_remedy}"),
    check("majority", |f| is_all(f, Quorum))
        .fails(|f| f.num("voting") < f.num("needed"))
        .warns(|f| f.num("voting") < f.num("servers"))
        .says("{voting} of {servers} servers have a vote; below {needed}, no lock can be taken")
        .remedy("start those that do not answer; a new one has its vote after {ttl_ms}"),
    check("sentinels", |f| is_all(f, Sentinel))
        .fails(|f| f.num("named") != 1.0)
        .says("{named} masters are named by {sentinels} sentinels: {masters}")
        .remedy("start them, SENTINEL MONITOR the service; RESET it if they go on to disagree"),
    warning(|f| f.is("sentinels", "1"))
        .remedy("name all sentinels in the URL: without this one, no other master is found"),
    check("clocks", |f| f.kind == Kind::All && f.deployment != Single)
        .fails(|f| f.num("surely_apart_ms") >= f.num("ttl_ms"))
        .warns(|f| f.num("surely_apart_ms") > f.num("allowed_ms"))
        .says("{ahead} is {apart_ms} ahead of {behind}; {allowed_ms} does no harm")
        .remedy("synchronise the clocks of all servers (NTP): chronyc makestep on each host"),
    check("sentinels", |f| f.kind == Kind::Sentinel)
        .says("{master}: {flags}, {num_other_sentinels} other sentinels, {num_slaves} replicas"),
    error(|f| f.is_refused("master"))
        .remedy("ACL SETUSER {user} +sentinel|get-master-addr-by-name +sentinel|master, there"),
    error(|f| !f.has("master") && !f.is_refused("master"))
        .remedy("SENTINEL MONITOR the service there, or correct it; is it a sentinel at all?"),
    error(|f| f.text("flags").contains("_down"))
        .remedy("wait for the failover; SENTINEL CKQUORUM says whether it can happen"),
    warning(|f| f.num("num_other_sentinels") < 2.0)
        .remedy("run three sentinels or more: when one of fewer is away, no failover happens"),
    warning(|f| f.num("down_after_milliseconds") < f.num("timeout_ms"))
        .says("down-after-milliseconds {down_after_milliseconds}: a slow master is replaced")
        .remedy("SENTINEL SET the service down-after-milliseconds to more than {timeout_ms}"),
    warning(|f| f.num("down_after_milliseconds") > f.num("ttl_ms") * 0.66)
        .says("down-after-milliseconds {down_after_milliseconds}: locks end before a failover")
        .remedy("SENTINEL SET the service down-after-milliseconds to half of the ttl"),
    error(|f| f.why("quorum_check").starts_with("NOQUORUM"))
        .says("it cannot agree on a failover with the other sentinels")
        .remedy("start the missing ones; SENTINEL CKQUORUM says how many it sees"),
    check("connection", is_server)
        .warns(|f| f.num("connect_ms") >= f.num("timeout_ms") / 2.0)
        .says("connected in {connect_ms} of the {timeout_ms} that it may take")
        .remedy("raise connect_timeout (--command-timeout), or move nearer to it"),
    error(|f| f.has("stopped"))
        .says("it stopped answering: {stopped}")
        .remedy("run this again; redis-cli SLOWLOG GET on the server has slow commands"),
    // A hiccup as long as half of the time fails calls.
    check("round_trip", is_server)
        .fails(|f| f.num("slowest_ms") >= f.num("reply_ms") / 2.0)
        .warns(|f| f.num("slowest_ms") >= f.num("reply_ms") / 10.0)
        .says("{median_ms}, the slowest {slowest_ms}; a reply may take {reply_ms}")
        .remedy("move nearer, or use a longer command_timeout and a ttl of ten such"),
    check("version", is_server)
        .fails(|f| f.num("major_minor") < 6.2)
        .says("redis_version {redis_version}")
        .remedy("upgrade to Redis 6.2 or newer, or to Valkey"),
    warning(|f| f.why("INFO").starts_with("the server has no"))
        .remedy("ask its operator: is it 6.2 or newer, and does one master serve each key?"),
    check("role", is_server).says("{role}, {redis_mode}"),
    error(|f| f.has("role") && !f.is("role", "master") && !f.is("role", "slave"))
        .remedy("use a server that is the only master: this one grants locks beside another"),
    error(|f| f.kind == Kind::Master && f.is("role", "slave"))
        .remedy("use the master: redis://{master_host}:{master_port}, or redis-sentinel://"),
    warning(|f| f.kind == Kind::Replica && f.is("master_link_status", "down"))
        .says("a replica whose link to its master is down")
        .remedy("if that lasts, see its log, masterauth, the network: it follows no master"),
    check("replicas", has_replicas)
        .fails(|f| f.num("online") < f.num("replica_acks"))
        .says("{online} in sync; {replica_acks} must acknowledge, or no lock can be taken")
        .remedy("start the missing replicas, or ask for fewer by --replica-acks"),
    warning(|f| f.has("late"))
        .says("{late}: a failover loses what it lacks")
        .remedy("wait; if it lasts: is it overloaded, stopped, or on a slow network?"),
    warning(|f| f.deployment != Single && f.is("connected_slaves", "0"))
        .remedy("start one, to take over: replicaof, or --cluster add-node --cluster-slave"),
    warning(is_unbounded)
        .says("min-replicas-to-write is 0: a master that is cut off goes on granting locks")
        .remedy("CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 1, on all"),
    check("cluster", keeps_slots)
        .fails(|f| f.is("cluster_state", "fail") || f.num("unserved_slots") > 0.0)
        .says("{cluster_known_nodes} nodes known; {unserved_slots} slots have no master")
        .remedy("start the masters of these slots; redis-cli --cluster check names them"),
    warning(|f| f.has("amiss"))
        .says("not well: {amiss}")
        .remedy("start it, or see what cuts it off; CLUSTER FORGET its id if it is gone"),
    warning(|f| f.is("cluster_require_full_coverage", "yes"))
        .says("cluster-require-full-coverage is yes")
        .remedy("CONFIG SET cluster-require-full-coverage no, on all: else one shard fails all"),
    check("eviction", is_server).says("maxmemory-policy is {maxmemory_policy}"),
    warning(evicts)
        .fails(|f| evicts(f) && f.num("maxmemory") > 0.0)
        .remedy("CONFIG SET maxmemory-policy noeviction: else a maxmemory evicts locks"),
    check("memory", is_server)
        .fails(|f| f.num("memory_share") >= 1.0 && !evicts(f))
        .warns(|f| f.num("memory_share") >= 0.9)
        .says("{used_memory_human} used; maxmemory {maxmemory_human} (0B: all of the host)")
        .remedy("CONFIG SET maxmemory, add memory, or delete data: full, it refuses locks"),
    // A server of a quorum that restarts waits for a ttl before it votes. So it need not remember.
    check("persistence", is_server).says("appendonly is {aof_enabled}, appendfsync {appendfsync}"),
    warning(|f| f.deployment != Quorum && f.is("aof_enabled", "0"))
        .remedy("CONFIG SET appendonly yes: else a restart loses all locks since a snapshot"),
    warning(|f| f.deployment != Quorum && f.is("aof_enabled", "1") && f.is("appendfsync", "no"))
        .remedy("CONFIG SET appendfsync everysec, or always: a crash loses the last half minute"),
    warning(|f| f.is("rdb_last_bgsave_status", "err"))
        .fails(|f| f.is("rdb_last_bgsave_status", "err") && refuses_unsaved(f))
        .says("the last BGSAVE failed")
        .remedy("make room on the server's disk or correct dir, then BGSAVE"),
    warning(|f| f.is("aof_last_bgrewrite_status", "err"))
        .says("it could not write the append-only file")
        .remedy("make room on the server's disk, then BGREWRITEAOF"),
    check("clients", is_server)
        .warns(|f| f.num("connected_clients") >= f.num("maxclients") * 0.9)
        .says("{connected_clients} of {maxclients}; timeout is {timeout} s (0: none)")
        .remedy("CONFIG SET maxclients to a larger number, or see CLIENT LIST for a leak"),
    warning(|f| f.num("timeout") > 0.0 && f.num("timeout") * 3000.0 <= f.num("ttl_ms"))
        .remedy("CONFIG SET timeout 0: connections end before the next renewal uses them"),
    check("rights", is_tried).says("locks have those of the user {user}"),
    error(|f| f.has("lacking"))
        .says("the user {user} lacks {lacking}")
        .remedy("ACL SETUSER {user} {lacking}"),
    warning(|f| f.has("absent"))
        .says("the server has no {absent}")
        .remedy("remove rename-command for {absent}: for lists, slots that move, or messages"),
    check("scripts", is_tried)
        .warns(is_slow_to_lock)
        .says("a lock was taken in {lock_ms}")
        .remedy("run this again; redis-cli SLOWLOG GET on the server has slow commands"),
    error(|f| f.has("lock"))
        .says("{lock}")
        .remedy("{lock_remedy}"),
    warning(|f| f.is("lua_time_limit", "0"))
        .says("lua-time-limit is 0")
        .remedy("CONFIG SET lua-time-limit 5000: a script that runs on cannot be ended"),
    // Without a message, a waiter looks once per check period.
    check("messages", |f| is_tried(f) && f.deployment != Quorum)
        .warns(|f| f.num("hand_over_ms") >= f.num("check_period_ms") * 0.7)
        .says("a waiter had the lock after {hand_over_ms}; without messages: {check_period_ms}")
        .remedy("SUBSCRIBE and PUBLISH in redis-cli through the same proxy"),
    error(|f| f.has("hand_over"))
        .says("{hand_over}")
        .remedy("{hand_over_remedy}"),
    // A manager's grants of one moment are far below that.
    warning(|f| f.num("pubsub_limit") < 262_144.0)
        .says("client-output-buffer-limit disconnects subscribers at {pubsub_limit} bytes")
        .remedy("CONFIG SET client-output-buffer-limit \"pubsub 32mb 8mb 60\""),
];
