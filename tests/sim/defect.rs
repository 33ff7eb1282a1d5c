//! Rules that can be left out of the protocol, to show that the simulator finds it.

use super::model::Kind;
use super::mutation::ScriptMutation;

/// A rule that the client leaves out, or a script that is wrong. Each says what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// R2 (served time): it grows by all time that passes, an outage included.
    R2,
    /// R3 (signs of life): a process that sends an acquire or a sync does not count as alive when
    /// the same script hands the lock over.
    R3,
    /// R4 (lost places): they are taken again in the wrong order.
    R4,
    /// R5 (dated requests): a request may take the lock after its caller has stopped waiting.
    R5,
    /// R6 (token lifetime): a waiter never replaces its token.
    R6,
    /// R7 (late copies): a release is not repeated while a late copy of the acquire could still
    /// take the lock.
    R7,
    /// R8 (grant during a request): a message counts at once, although a request of its token is
    /// in flight.
    R8,
    /// R10 (places of the dead): a lease that lapses leaves the places of its process as they are.
    R10,
    /// R11 (missing keys): nobody notices that the queue has lost its entries.
    R11,
    /// R13 (unwanted grants): they are not released.
    R13,
    /// A lease that lapsed in an outage gets its grace again and again.
    Grace,
    /// Silent waiters keep their places three times as long.
    Horizon,
    /// R15 (clock went back): a lease from before the step lasts until the clock is there again.
    R15,
    /// A sync does not report the owner.
    Owner,
    /// A release does not report that it handed the lock to another waiter of its own process.
    HandOver,
    /// No waiter checks whether the holder's lease is over.
    Checks,
    /// R16 (hold_at_least): the lock is handed over too soon.
    HoldAtLeast,
    /// A lock is held past its `max_hold`.
    MaxHold,
    /// A forced release ends the lease without comparing its fence.
    Force,
    /// A release succeeds for a caller that does not own the lock.
    OwnerUnchecked,
    /// A hand-over repeats the fence of the grant before.
    FenceKept,
    /// More permits are granted than are left.
    Capacity,
    /// A request for few permits overtakes a waiter that needs more.
    Overtaking,
    /// Like [`Defect::R10`], for permits.
    PermitR10,
    /// A lapsed holder is forgotten at once.
    Tombstone,
    /// Like [`Defect::Grace`], for permits.
    PermitGrace,
    /// Like [`Defect::R15`], for permits.
    PermitR15,
    /// A reader gets a fence of its own.
    ReaderRaises,
    /// A writer, or a caller that takes a semaphore's permits, gets the fence of the grant before.
    PermitFenceKept,
    /// A release returns one permit too many.
    ReleasesMore,
    /// A downgrade returns all permits.
    DowngradesAll,
    /// Nobody notices that the holders were lost.
    HoldersLost,
    /// Nobody notices that the record was lost while the holders were not.
    RecordLost,
    /// Like [`Defect::HandOver`], for permits.
    PermitHandOver,
    /// A lookup after a lost message answers that the token still waits.
    Lookup,
    /// Like [`Defect::OwnerUnchecked`], for permits: a caller that holds none any more succeeds.
    PermitUnchecked,
    /// Like [`Defect::Force`], for permits.
    PermitForce,
    /// The holder of a lapsed lease gets the answer that nothing is known about it.
    Unknown,
    /// A lapsed holder is forgotten when the clock goes back.
    TombstoneStep,
    /// The record notes the longest lease instead of the shortest. By the shortest a script sees
    /// that the clock went back.
    Shortest,
}

impl Defect {
    /// The lines of the scripts that it changes. None for a defect of the client.
    pub(super) fn mutations(self) -> Vec<ScriptMutation> {
        self.edits()
            .iter()
            .map(|&(line, instead)| ScriptMutation { line, instead })
            .collect()
    }

    /// Each line, and what replaces it.
    fn edits(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Defect::R2 => &[(
                "v = v + math.max(0, math.min(passed, step))",
                "v = v + math.max(0, passed)",
            )],
            Defect::R3 => &[(
                "alive = manager                                 -- R3\n",
                "",
            )],
            Defect::R10 => &[(
                "dead[holder] = true\n      del[#del + 1] = 'm:' .. holder",
                "",
            )],
            Defect::R11 => &[("if length < n then", "if false then")],
            Defect::Grace => &[("~= string.format('%.0f', f) then", "~= '' then")],
            Defect::Horizon => &[("v + ARGV[3]", "v + 3 * ARGV[3]")],
            Defect::R15 => &[("if e - now > cap then", "if false then")],
            Defect::Owner => &[("more, owner or '', f", "more, '', f")],
            Defect::HandOver => &[("grants = { owner, f, now, left, d }", "grants = {}")],
            Defect::HoldAtLeast => {
                &[("(mode == 'used' or mode == 'lost') and cool > now", "false")]
            }
            Defect::Force => &[("f == fence and (owner", "f and (owner")],
            Defect::OwnerUnchecked => &[(
                "elseif owner == token then\n  -- R9",
                "elseif owner then\n  -- R9",
            )],
            Defect::FenceKept => &[(
                "f, g = math.max((f or 0) + 1, now), now",
                "f, g = f or now, now",
            )],
            Defect::Capacity => &[("n == 0 and used + weight <= capacity then", "n == 0 then")],
            Defect::Overtaking => &[(
                "n == 0 and used + weight <= capacity then",
                "used + weight <= capacity then",
            )],
            Defect::PermitR10 => &[("if died and not dead[by] then", "if false then")],
            Defect::Tombstone => &[("ends = 3\n", "ends = true\n")],
            Defect::PermitGrace => &[("stands == 0 and died", "stands < 2 and died")],
            Defect::PermitR15 => &[(" or b - now > 1000 * shortest", "")],
            Defect::ReaderRaises => &[("~= 'rw/' then f =", "~= '' then f =")],
            Defect::PermitFenceKept => &[("then f = math.max(f + 1, now) end", "then end")],
            Defect::ReleasesMore => &[(
                "kept, used = nil, used - weight",
                "kept, used = nil, used - weight - 1",
            )],
            Defect::DowngradesAll => &[("used - weight + 1, 1", "used - weight, 1")],
            Defect::HoldersLost => &[(
                "= 0, 0, state ~= false",
                "= #all > 0 and 0 or used, 0, state ~= false",
            )],
            Defect::RecordLost => &[("if not state or forced or", "if forced or")],
            Defect::PermitHandOver => &[("local i = #grants", "local grants, i = {}, 0")],
            Defect::Lookup => &[("if stands < 2 then told", "if false then told")],
            Defect::PermitUnchecked => &[("elseif had and stands < 2 then", "elseif had then")],
            Defect::PermitForce => &[("if forced == fence then", "if forced then")],
            Defect::Unknown => &[("elseif x == fence then", "elseif false then")],
            Defect::TombstoneStep => &[(
                "e - now > 1000 * cap then e,",
                "e - now > 1000 * cap then ends, e, changed = stands > 2, 0, true end\n    if e - now > 1000 * cap then e,",
            )],
            Defect::Shortest => &[("math.min(shortest, lasts)", "math.max(shortest, lasts)")],
            Defect::MaxHold | Defect::Checks => &[],
            Defect::R4 | Defect::R5 | Defect::R6 | Defect::R7 | Defect::R8 | Defect::R13 => &[],
        }
    }

    /// Whether runs of this kind can find it.
    pub(super) fn concerns(self, kind: Kind) -> bool {
        let is_mutex = kind == Kind::Mutex;
        match self {
            Defect::R10 | Defect::Grace | Defect::R15 | Defect::Owner | Defect::HandOver => {
                is_mutex
            }
            Defect::Force | Defect::OwnerUnchecked | Defect::FenceKept | Defect::Unknown => {
                is_mutex
            }
            Defect::Capacity | Defect::Overtaking | Defect::PermitR10 | Defect::Tombstone => {
                !is_mutex
            }
            Defect::PermitGrace
            | Defect::PermitR15
            | Defect::PermitFenceKept
            | Defect::ReleasesMore => !is_mutex,
            Defect::HoldersLost | Defect::RecordLost | Defect::PermitHandOver | Defect::Lookup => {
                !is_mutex
            }
            Defect::PermitUnchecked
            | Defect::PermitForce
            | Defect::TombstoneStep
            | Defect::Shortest => !is_mutex,
            Defect::ReaderRaises | Defect::DowngradesAll => matches!(kind, Kind::ReadWrite(_)),
            // All kinds have these rules. They show soonest where one caller alone can hold.
            Defect::R7 | Defect::R8 | Defect::R11 => is_mutex,
            Defect::R2 | Defect::R3 | Defect::R4 | Defect::R5 | Defect::R6 | Defect::R13 => true,
            Defect::Horizon | Defect::Checks | Defect::HoldAtLeast | Defect::MaxHold => true,
        }
    }
}
