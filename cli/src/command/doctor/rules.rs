//! All rules: what is good, what is not, and what to do about it.
//!
//! They are in the order in which findings are shown. A check says for which servers it is made,
//! and what it says about a good one. The rules behind it may find something else. What is not
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
    /// Facts have their names in braces.
    text: &'static str,
    remedy: &'static str,
}

fn check(check: &'static str, applies: Condition) -> Rule {
    Rule {
        check,
        applies,
        warns: |_| false,
        fails: |_| false,
        text: "",
        remedy: "",
    }
}

fn warning(is_bad: Condition) -> Rule {
    check("", |_| true).warns(is_bad)
}

fn error(is_bad: Condition) -> Rule {
    check("", |_| true).fails(is_bad)
}

impl Rule {
    fn warns(self, warns: Condition) -> Rule {
        Rule { warns, ..self }
    }

    fn fails(self, fails: Condition) -> Rule {
        Rule { fails, ..self }
    }

    fn says(self, text: &'static str) -> Rule {
        Rule { text, ..self }
    }

    fn remedy(self, remedy: &'static str) -> Rule {
        Rule { remedy, ..self }
    }

    fn level(&self, facts: &Facts) -> Level {
        match ((self.fails)(facts), (self.warns)(facts)) {
            // Without it, locks go on as long as its master lives.
            (true, _) if facts.kind != Kind::Replica => Level::Error,
            (false, false) => Level::Ok,
            _ => Level::Warning,
        }
    }
}

/// The findings about one server, or about all of them. At least one for each check that is made.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let rules = match facts.has("failure") {
        true => vec![failure(facts)],
        false => rules(),
    };
    let mut findings: Vec<Finding> = Vec::new();
    let (mut check, mut is_made) = ("", false);
    for rule in rules {
        if !rule.check.is_empty() {
            (check, is_made) = (rule.check, (rule.applies)(facts));
        }
        let level = rule.level(facts);
        if !is_made || level == Level::Ok && rule.check.is_empty() {
            continue;
        }
        // A broken rule takes the place of what is good.
        findings.pop_if(|last| last.check == check && last.level == Level::Ok);
        let mut remedy = facts.fill(rule.remedy);
        if remedy.contains("CONFIG SET ") {
            remedy += ". CONFIG REWRITE keeps that over a restart";
        }
        findings.push(Finding {
            check,
            level,
            server: facts.server.clone(),
            message: facts.fill(rule.text),
            remedy: (level > Level::Ok).then_some(remedy),
        });
    }
    findings
}

fn failure(f: &Facts) -> Rule {
    let failed = match f.kind {
        Kind::Sentinel => check("sentinels", |_| true).warns(|_| true),
        _ if f.is("is_spared", "true") => check("connection", |_| true).warns(|_| true),
        _ => check("connection", |_| true).fails(|_| true),
    };
    failed.says("{failure}").remedy("{what_to_do}")
}

fn is_server(f: &Facts) -> bool {
    matches!(f.kind, Kind::Master | Kind::Replica)
}

fn is_tried(f: &Facts) -> bool {
    f.kind == Kind::Master && f.is("is_tried", "true")
}

/// Every lock has a TTL, so the policies `volatile-*` take locks as `allkeys-*` do.
fn evicts(f: &Facts) -> bool {
    f.has("maxmemory_policy") && !f.is("maxmemory_policy", "noeviction")
}

/// A failed snapshot has writes refused.
fn needs_snapshots(f: &Facts) -> bool {
    f.is("stop_writes_on_bgsave_error", "yes") && f.has("save") && !f.is("save", "")
}

/// A server of a quorum that restarts waits for a ttl before it votes. So it need not remember.
fn forgets(f: &Facts) -> bool {
    let by_system = f.is("aof_enabled", "1") && f.is("appendfsync", "no");
    f.deployment != Quorum && (f.is("aof_enabled", "0") || by_system)
}

/// 0 turns the lag off, and the demand with it.
fn lacks_good_replicas(f: &Facts) -> bool {
    f.num("good_replicas") < f.num("min_replicas_to_write") && f.num("min_replicas_max_lag") > 0.0
}

fn is_unbounded(f: &Facts) -> bool {
    let bound = f.num("min_replicas_to_write") + f.num("replica_acks");
    matches!(f.deployment, Sentinel | Cluster) && bound == 0.0 && f.num("online") > 0.0
}

/// Without a message, a waiter looks once per check period.
fn is_without_messages(f: &Facts) -> bool {
    let is_late = f.ratio("hand_over_ms", "check_period_ms") >= 0.7;
    is_late || f.is_absent("PUBLISH") || f.is_absent("SUBSCRIBE")
}

fn has_replicas(f: &Facts) -> bool {
    f.kind == Kind::Master && f.deployment != Quorum && !f.is("role", "slave")
}

/// Said once for all servers of such a deployment.
fn is_all(f: &Facts, deployment: Deployment) -> bool {
    f.kind == Kind::All && f.deployment == deployment
}

fn rules() -> Vec<Rule> {
    [
        of_sets(),
        of_sentinels(),
        of_links(),
        of_copies(),
        of_data(),
        of_use(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_sets() -> Vec<Rule> {
    vec![
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
            .says("the URL names one sentinel: without it, no other master is found")
            .remedy("name all sentinels in the URL"),
        check("clocks", |f| f.kind == Kind::All && f.deployment != Single)
            .fails(|f| f.num("surely_apart_ms") >= f.num("ttl_ms"))
            .warns(|f| f.num("surely_apart_ms") > f.num("allowed_ms"))
            .says("{ahead} is {apart_ms} ahead of {behind}; {allowed_ms} does no harm")
            .remedy("synchronise the clocks of all servers (NTP): chronyc makestep on each host"),
    ]
}

fn of_sentinels() -> Vec<Rule> {
    vec![
        check("sentinels", |f| f.kind == Kind::Sentinel)
            .says("knows {num_other_sentinels} other sentinels and {num_slaves} replicas"),
        error(|f| f.is_refused("master") || f.is_refused("address"))
            .says("the user {user} may not ask for the master")
            .remedy("ACL SETUSER {user} +sentinel|get-master-addr-by-name +sentinel|master, there"),
        error(|f| !f.has("master") && !f.is_refused("master"))
            .says("{master}")
            .remedy("SENTINEL MONITOR the service there, or correct it; is it a sentinel at all?"),
        error(|f| f.text("flags").contains("_down"))
            .says("the master is down in the eyes of this sentinel")
            .remedy("wait for the failover; SENTINEL CKQUORUM says whether it can happen"),
        warning(|f| f.num("num_other_sentinels") < 2.0)
            .says("there are fewer than three sentinels: when one is away, no failover happens")
            .remedy("run three sentinels or more, on different hosts"),
        warning(|f| f.num("down_after_milliseconds") < f.num("timeout_ms"))
            .says("down-after-milliseconds {down_after_milliseconds}: a slow master is replaced")
            .remedy("SENTINEL SET the service down-after-milliseconds to more than {timeout_ms}"),
        warning(|f| f.ratio("down_after_milliseconds", "ttl_ms") > 0.66)
            .says("down-after-milliseconds {down_after_milliseconds}: locks end before a failover")
            .remedy("SENTINEL SET the service down-after-milliseconds to half of the ttl"),
        error(|f| f.why("quorum_check").starts_with("NOQUORUM"))
            .says("it cannot agree on a failover with the others")
            .remedy("start the missing sentinels: a majority of them must be there"),
    ]
}

fn of_links() -> Vec<Rule> {
    vec![
        check("connection", is_server)
            .warns(|f| f.ratio("connect_ms", "timeout_ms") >= 0.5)
            .says("connected in {connect_ms} of the {timeout_ms} that it may take")
            .remedy("raise connect_timeout (--command-timeout), or move nearer to it"),
        error(|f| f.has("stopped"))
            .says("it stopped answering: {stopped}")
            .remedy("run this again; redis-cli SLOWLOG GET on the server has slow commands"),
        // A hiccup as long as half of the time fails calls.
        check("round_trip", is_server)
            .fails(|f| f.ratio("slowest_ms", "reply_ms") >= 0.5)
            .warns(|f| f.ratio("slowest_ms", "reply_ms") >= 0.1)
            .says("{median_ms}, the slowest {slowest_ms}; a reply may take {reply_ms}")
            .remedy("move nearer, or use a command_timeout of {roomy_ms} and a ttl of ten such"),
        check("version", is_server)
            .fails(|f| f.num("major_minor") < 6.2)
            .says("{product}")
            .remedy("upgrade to Redis 6.2 or newer, or to Valkey"),
        warning(|f| f.has("no_hello") && !f.has("product"))
            .says("neither HELLO nor INFO says what this server is: a proxy answers")
            .remedy("ask its operator: is it 6.2 or newer, and does one master serve each key?"),
        check("role", is_server).says("{role}, {redis_mode}"),
        error(|f| f.has("role") && !f.is("role", "master") && !f.is("role", "slave"))
            .says("the role {role}: it takes writes as another does, so both could grant a lock")
            .remedy("use a server that is the only master"),
        error(|f| f.kind == Kind::Master && f.is("role", "slave"))
            .says("a replica, which refuses locks")
            .remedy("use redis://{master_host}:{master_port}, or a redis-sentinel:// URL"),
        warning(|f| f.kind == Kind::Replica && !f.is("master_link_status", "up") && f.has("role"))
            .says("it follows no master now: what is written meanwhile would be lost")
            .remedy("if it lasts longer than a failover, look at its log, masterauth, the network"),
    ]
}

fn of_copies() -> Vec<Rule> {
    vec![
        // The servers of a quorum have none.
        check("replicas", has_replicas)
            .fails(|f| f.num("online") < f.num("replica_acks"))
            .says("{online} in sync; {replica_acks} must acknowledge, or no lock can be taken")
            .remedy("start the missing replicas, or ask for fewer by --replica-acks"),
        warning(|f| f.has("late"))
            .says("{late}: a failover loses what it lacks")
            .remedy("wait; if it lasts: is it overloaded, stopped, or on a slow network?"),
        warning(|f| f.deployment != Single && f.is("connected_slaves", "0"))
            .says("there are none, so nothing takes over when this master dies")
            .remedy("start one: replicaof, or redis-cli --cluster add-node with --cluster-slave"),
        error(lacks_good_replicas)
            .says("fewer are good than min-replicas-to-write: locks are refused (NOREPLICAS)")
            .remedy("start the missing replicas"),
        warning(is_unbounded)
            .says("min-replicas-to-write is 0: a master that is cut off goes on granting locks")
            .remedy("CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 1, on all"),
        check("cluster", |f| {
            f.kind == Kind::Master && f.deployment == Cluster
        })
        .fails(|f| f.is("cluster_state", "fail") || f.num("unserved_slots") > 0.0)
        .warns(|f| f.num("cluster_slots_pfail") > 0.0)
        .says("{cluster_known_nodes} nodes known; {unserved_slots} slots have no master")
        .remedy("start the masters of these slots; redis-cli --cluster check names them"),
        warning(|f| f.has("amiss"))
            .says("not well: {amiss}")
            .remedy("start it, or see what cuts it off; CLUSTER FORGET its id if it is gone"),
        warning(|f| f.is("cluster_require_full_coverage", "yes"))
            .says("cluster-require-full-coverage is yes: one shard that is down fails all locks")
            .remedy("CONFIG SET cluster-require-full-coverage no, on every node"),
    ]
}

fn of_data() -> Vec<Rule> {
    vec![
        check("eviction", is_server).says("maxmemory-policy is {maxmemory_policy}"),
        warning(evicts)
            .fails(|f| evicts(f) && f.num("maxmemory") > 0.0)
            .says("maxmemory-policy is {maxmemory_policy}: with a maxmemory, locks are evicted")
            .remedy("CONFIG SET maxmemory-policy noeviction"),
        check("memory", is_server)
            .fails(|f| f.num("memory_share") >= 1.0 && !evicts(f))
            .warns(|f| f.num("memory_share") >= 0.9)
            .says("{used_memory_human} used; maxmemory {maxmemory_human} (0B: all of the host)")
            .remedy(
                "CONFIG SET maxmemory, more memory, or less data: full, it refuses locks (OOM)",
            ),
        check("persistence", is_server)
            .warns(forgets)
            .says("{loses}")
            .remedy("CONFIG SET appendonly yes and CONFIG SET appendfsync everysec, or always"),
        warning(|f| f.is("rdb_last_bgsave_status", "err"))
            .fails(|f| f.is("rdb_last_bgsave_status", "err") && needs_snapshots(f))
            .says("the last snapshot could not be written; by default locks are refused (MISCONF)")
            .remedy("make room on the server's disk or correct dir, then BGSAVE"),
        warning(|f| f.is("aof_last_bgrewrite_status", "err"))
            .fails(|f| f.is("aof_last_write_status", "err"))
            .says("AOF: last write {aof_last_write_status}, rewrite {aof_last_bgrewrite_status}")
            .remedy(
                "make room on the server's disk, then BGREWRITEAOF; else MISCONF refuses locks",
            ),
    ]
}

fn of_use() -> Vec<Rule> {
    vec![
        check("clients", is_server)
            .warns(|f| f.ratio("connected_clients", "maxclients") >= 0.9)
            .says("{connected_clients} of {maxclients}; timeout is {timeout} s (0: none)")
            .remedy("CONFIG SET maxclients to a larger number, or see CLIENT LIST for a leak"),
        warning(|f| f.num("timeout") > 0.0 && f.num("timeout") * 3000.0 <= f.num("ttl_ms"))
            .says("timeout is {timeout} s: connections end before the next renewal uses them")
            .remedy("CONFIG SET timeout 0"),
        check("clock", is_server).says("{offset} to this host's clock, which does not count"),
        check("rights", is_tried).says("the user {user} has all that locks need"),
        error(|f| f.has("lacking"))
            .says("the user {user} lacks {lacking}")
            .remedy("ACL SETUSER {user} {lacking}"),
        warning(|f| f.has("absent"))
            .says("the server has no {absent}; SCAN is for lists, ASKING for slots that move")
            .remedy("remove rename-command for {absent} from the server's configuration"),
        check("scripts", is_tried)
            .fails(|f| f.has("lock_remedy"))
            .says("{lock}")
            .remedy("{lock_remedy}"),
        warning(|f| f.deployment != Quorum && f.has("median_ms") && !f.has("lock"))
            .says("no lock was taken: {lock}")
            .remedy("run this again; redis-cli SLOWLOG GET on the server has slow commands"),
        warning(|f| f.is("lua_time_limit", "0"))
            .says("lua-time-limit is 0: a script that runs on and on cannot be ended")
            .remedy("CONFIG SET lua-time-limit 5000"),
        check("messages", |f| is_tried(f) && f.deployment != Quorum).says("{hand_over}"),
        warning(is_without_messages)
            .says("no message came: {hand_over}; it may take {check_period_ms} without them")
            .remedy("SUBSCRIBE and PUBLISH in redis-cli through the same proxy"),
        error(|f| f.has("hand_over_remedy"))
            .says("{hand_over}")
            .remedy("{hand_over_remedy}"),
        // A manager's grants of one moment are far below that.
        warning(|f| f.num("pubsub_limit") < 262_144.0)
            .says("client-output-buffer-limit disconnects subscribers at {pubsub_limit} bytes")
            .remedy("CONFIG SET client-output-buffer-limit \"pubsub 32mb 8mb 60\""),
    ]
}
