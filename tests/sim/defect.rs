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
                "served_time = served_time + math.max(0, math.min(elapsed, step))",
                "served_time = served_time + math.max(0, elapsed)",
            )],
            Defect::R3 => &[("live_manager = manager\n", "")],
            Defect::R10 => &[(
                "skip[holder_manager] = true\n      \
                 fields_to_delete[#fields_to_delete + 1] = 'm:' .. holder_manager",
                "",
            )],
            Defect::R11 => &[("if length < entries then", "if false then")],
            Defect::Grace => &[("~= string.format('%.0f', fence) then", "~= '' then")],
            Defect::Horizon => &[("served_time + ARGV[3]", "served_time + 3 * ARGV[3]")],
            Defect::R15 => &[("if lease_end - now > lease_us then", "if false then")],
            Defect::Owner => &[("owner or '', fence", "'', fence")],
            Defect::HandOver => &[(
                "grants = { owner, fence, now, lease_us, previous }",
                "grants = {}",
            )],
            Defect::HoldAtLeast => &[(
                "(mode == 'used' or mode == 'lost') and cool_until > now",
                "false",
            )],
            Defect::Force => &[(
                "if fence == callers_fence and (owner",
                "if fence and (owner",
            )],
            Defect::OwnerUnchecked => &[(
                "elseif owner == token then\n  -- R9",
                "elseif owner then\n  -- R9",
            )],
            Defect::FenceKept => &[(
                "fence, granted_at = math.max((fence or 0) + 1, now), now",
                "fence, granted_at = fence or now, now",
            )],
            Defect::Capacity => &[(
                "entries == 0\n  and permits_taken + weight <= capacity then",
                "entries == 0 then",
            )],
            Defect::Overtaking => &[(
                "entries == 0\n  and permits_taken + weight <= capacity then",
                "permits_taken + weight <= capacity then",
            )],
            Defect::PermitR10 => &[(
                "if holder_died and not skip[holder_manager] then",
                "if false then",
            )],
            Defect::Tombstone => &[("ends = 3\n", "ends = true\n")],
            Defect::PermitGrace => &[("phase == 0 and holder_died", "phase < 2 and holder_died")],
            Defect::PermitR15 => &[(" or next_lapse - now > 1000 * shortest_lease", "")],
            Defect::ReaderRaises => &[("~= 'rw/' then fence =", "~= '' then fence =")],
            Defect::PermitFenceKept => &[("then fence = math.max(fence + 1, now) end", "then end")],
            Defect::ReleasesMore => &[(
                "kept_field, permits_taken = nil, permits_taken - weight",
                "kept_field, permits_taken = nil, permits_taken - weight - 1",
            )],
            Defect::DowngradesAll => {
                &[("permits_taken - weight + 1, 1", "permits_taken - weight, 1")]
            }
            Defect::HoldersLost => &[(
                "= 0, 0, packed_state ~= false",
                "= #all > 0 and 0 or permits_taken, 0, packed_state ~= false",
            )],
            Defect::RecordLost => &[("if not packed_state or forced_fence\n", "if forced_fence\n")],
            Defect::PermitHandOver => &[("local count = #grants", "local grants, count = {}, 0")],
            Defect::Lookup => &[(
                "if phase < 2 then\n      found",
                "if false then\n      found",
            )],
            Defect::PermitUnchecked => &[(
                "elseif packed_holder and phase < 2 then",
                "elseif packed_holder then",
            )],
            Defect::PermitForce => &[(
                "if forced_fence == holder_fence then",
                "if forced_fence then",
            )],
            Defect::Unknown => &[(
                "elseif ended_fence == callers_fence then",
                "elseif false then",
            )],
            Defect::TombstoneStep => &[(
                "if lease_end - now > 1000 * lease_ms then lease_end,",
                "if lease_end - now > 1000 * lease_ms then ends, lease_end, changed = phase > 2, 0, true end\n    \
                 if lease_end - now > 1000 * lease_ms then lease_end,",
            )],
            Defect::Shortest => &[(
                "math.min(shortest_lease, lease_ms)",
                "math.max(shortest_lease, lease_ms)",
            )],
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
