//! What can be left out of the protocol, to see that the simulator finds it.

use super::model::ModelKind;
use crate::script;
use crate::store::memory::server::Server;

/// A rule that is left out, or a line of a script that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Served time grows by all time that passes, an outage included.
    R2,
    /// A process that asks is not taken for alive before the lock is given on.
    R3,
    /// Lost places are taken again in the wrong order.
    R4,
    /// Requests are good for longer than their callers wait.
    R5,
    /// A token is sent for as long as it takes.
    R6,
    /// What is given back is not given back again while a late copy could take it.
    R7,
    /// News of a grant counts at once, whatever request of its token is in flight.
    R8,
    /// A lease that lapses leaves the places of its process as they are.
    R10,
    /// A queue that lost its entries is not noticed.
    R11,
    /// A grant that nobody wants is not given back.
    R13,
    /// A lease that lapsed in an outage is spared again and again.
    Grace,
    /// The silent keep their places for three times as long.
    Horizon,
    /// A lease from before the clock went back lasts until the clock is there again.
    R15,
    /// A check does not tell who the owner is.
    Owner,
    /// A release does not tell who of its own process has the lock then.
    HandOver,
    /// Nobody who waits looks whether the holder's time is over.
    Checks,
    /// A lock is given on before its least time is over.
    HoldAtLeast,
    /// A lock is held past its longest time.
    MaxHold,
    /// A force takes a lock whatever its fence is.
    Force,
    /// Whoever asks releases the lock.
    OwnerUnchecked,
    /// A hand-over repeats the fence of the grant before.
    FenceKept,
    /// Permits are granted though there are not as many left.
    Capacity,
    /// Who asks for what is left is not kept waiting by those who stand there for more.
    Overtaking,
    /// As [`Defect::R10`], of permits.
    PermitR10,
    /// A holder that lapsed is forgotten at once.
    Tombstone,
    /// As [`Defect::Grace`], of permits.
    PermitGrace,
    /// As [`Defect::R15`], of permits.
    PermitR15,
    /// A reader has a fence of its own.
    ReaderRaises,
    /// A writer, or who takes a semaphore's permits, has the fence of the one before.
    PermitFenceKept,
    /// A release gives back one permit too many.
    ReleasesMore,
    /// A downgrade gives back all permits.
    DowngradesAll,
    /// That the holders were lost is not noticed.
    HoldersLost,
    /// That the record was lost and the holders were not is not noticed.
    RecordLost,
    /// As [`Defect::HandOver`], of permits.
    PermitHandOver,
    /// Who looks for a grant whose message was lost is told that it waits.
    Lookup,
    /// As [`Defect::OwnerUnchecked`], of permits: also who holds none any more.
    PermitUnchecked,
    /// As [`Defect::Force`], of permits.
    PermitForce,
    /// Whose lease lapsed is told that nothing is known of it.
    Unknown,
    /// A holder that lapsed is forgotten when the clock goes back.
    TombstoneStep,
    /// The longest lease is noted in the place of the shortest, by which it is seen that the clock went back.
    Shortest,
}

impl Defect {
    /// Lines of the scripts, and what takes the place of each.
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
            Defect::Owner => &[("owner or '', f", "'', f")],
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

    /// Whether it can be found in runs of this kind.
    pub(super) fn concerns(self, kind: ModelKind) -> bool {
        let (is_mutex, is_shared) = (
            kind == ModelKind::Mutex,
            matches!(kind, ModelKind::ReadWrite(_)),
        );
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
            Defect::ReaderRaises | Defect::DowngradesAll => is_shared,
            // Of what all have in common, these show soonest where one alone can hold.
            Defect::R7 | Defect::R8 | Defect::R11 => is_mutex,
            Defect::R2 | Defect::R3 | Defect::R4 | Defect::R5 | Defect::R6 | Defect::R13 => true,
            Defect::Horizon | Defect::Checks | Defect::HoldAtLeast | Defect::MaxHold => true,
        }
    }

    /// Gives a server the scripts with this defect.
    pub(super) fn put_into(self, server: &mut Server) {
        for (line, other) in self.edits() {
            let sources: Vec<&str> = script::sources()
                .filter(|source| source.contains(line))
                .collect();
            assert!(!sources.is_empty(), "{self:?}: no script has {line:?}");
            for source in sources {
                server
                    .replace(source, &source.replace(line, other))
                    .expect("the script with the defect is Lua");
            }
        }
    }
}
