//! Rules of a quorum that can be left out, to show that the simulator finds it.

use crate::sim::ScriptMutation;

/// A rule that the client or a script leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// Grants under different fences count together.
    MixedFences,
    /// A node that refuses a proposal keeps its fence all the same.
    RefusalRaises,
    /// A node votes as soon as its server has restarted.
    NoUptimeCheck,
    /// A renewal takes a name again on a node that has granted it to another token since.
    RenewalTakesBack,
    /// The local deadline is not shortened by the margin for clocks.
    NoMargin,
    /// The local deadline counts from the decision, not from before the first request.
    DatedByDecision,
    /// An acquire that failed leaves what a minority granted.
    MinorityKept,
    /// R5 (dated requests): a node takes a request however late it comes.
    NoDates,
    /// R7 (late copies): the first answer to a release ends it on a node.
    ReleasedOnce,
    /// P7: an attempt to release knows nothing of those before.
    EachAttemptAlone,
    /// A fence need not be above the clocks of the nodes.
    FenceBelowClock,
}

impl Defect {
    pub(super) fn mutations(self) -> Vec<ScriptMutation> {
        let edits: &[(&str, &str)] = match self {
            Defect::RefusalRaises => &[(
                "if owner ~= token and lease_end > now then return { 'busy'",
                "if owner ~= token and lease_end > now then
                   redis.call('HSET', KEYS[1], 'g', struct.pack(GRANT, lease_end, granted_at,
                     math.max(fence, callers_fence), ended_fence, expires_at, ttl, hold, ended_how))
                   return { 'busy'",
            )],
            Defect::RenewalTakesBack => &[
                (
                    "elseif callers_fence <= fence then\n  return { 'gone'",
                    "elseif false then\n  return { 'gone'",
                ),
                (
                    "elseif owner ~= token and lease_end > now then\n  return { 'busy'",
                    "elseif false then\n  return { 'busy'",
                ),
            ],
            _ => &[],
        };
        let mutation =
            |&(line, instead): &(&'static str, &'static str)| ScriptMutation { line, instead };
        edits.iter().map(mutation).collect()
    }
}
