//! Rules that can be left out of the protocol, to show that the simulator finds it.

use super::model::ModelKind;
use super::mutation::{COUNTS_WHAT_IS_LEFT, ScriptMutation};

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
    /// R11 (missing keys): a waiter that leaves has a list written anew that lost its entries, and
    /// what is left of it is counted. The sync looks at that count alone.
    R11Rewrite,
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
    /// Renewals that go together renew whatever owner a name has.
    TogetherUnchecked,
    /// Renewals that go together give a lease twice its time.
    TogetherTooLong,
    /// A release ends whatever lease its token has, as if it were the one that the caller knows.
    FenceUnchecked,
    /// Like [`Defect::FenceUnchecked`], but only while nobody waits.
    FenceUncheckedAlone,
    /// A lock that its owner released while nobody waited counts as held until the lease's end.
    ReleaseTakenForCooling,
    /// A forced release that comes again finds nothing to end.
    ForceForgotten,
    /// Only the last two ends without a release are remembered.
    EndsForgotten,
    /// An earlier lease that was ended by force is remembered as lapsed.
    ForceTakenForLapse,
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
    /// A look at the holders ends after its first page.
    LookCutShort,
    /// A record that was lost beside its holders is made again without an expiry.
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
    /// No defect: a look at the holders takes them one by one, so that most calls find it under
    /// way.
    OnePerPage,
    /// R15 (clock went back): a downgrade leaves a lease from before the step as long as it is.
    DowngradeR15,
    /// R15 (clock went back): what is released after the step cools from its grant, which is in the
    /// future.
    CoolingR15,
    /// R15 (clock went back): the answer to a repeated request says how much is left of a lease by
    /// a clock that has gone back since the grant.
    LeftTooLong,
    /// The same answers, and the client believes them.
    LeftBelieved,
    /// The same answers, and only the client rejects them. No run shows this one: it is for the
    /// proof that the client needs no help.
    LeftDoubted,
    /// A drop leaves although a caller of its process waits for the lock.
    LeavesWaiters,
    /// A drop leaves although nobody reads the replies before its own.
    LeavesUnread,
    /// A reply is dated by the last request of its lane, not by its own.
    LaneDate,
    /// A release that nobody waits for counts as done when the server does not know its script.
    RefusedIsDone,
    /// The answers behind such a release count.
    RefusedIsOvertaken,
    /// After a connection has ended, releases that nobody waits for are sent again last.
    ResendOrder,
    /// The place of a line is never sent.
    LinePlace,
    /// A line hands the lock over once more than its options allow. It reserves a fence for that, too.
    OneTurnMore,
    /// A grant that ends without a release frees the fences that it had reserved.
    ReserveForgotten,
    /// A guard that leaves its work half done uses up all fences that its grant has reserved.
    ReserveBurnt,
    /// R5 (dated requests): a renewal that comes late extends the lease, alone or with others.
    RenewalR5,
    JointRenewalR5,
    /// A release by force that comes late ends the lease.
    ForceR5,
    /// A release leaves the first fence of its grant, whatever its guards had.
    LastFenceForgotten,
    /// A release names the first fence of its grant, whatever its guards had.
    LastFenceUnnamed,
    /// A release by force takes the first fence of a grant only.
    ForceFirstOnly,
    /// R22 (tries among the dead): a try asks again before anybody can answer its call.
    NobodyAwaited,
    /// A try that asks again counts all of the time, although somebody came.
    AnswerIgnored,
    /// A try counts all of the time without a call.
    NobodyCalled,
    /// No defect: only runs whose processes keep locks.
    KeepersAlone,
    /// A caller that takes the lock for itself finds what its process keeps in its way.
    NoWayMade,
    /// No message says that somebody waits.
    WantedIgnored,
    /// A process whose subscription is dead believes that it hears.
    AlwaysHeard,
    /// Nobody tells the owner of a lock that somebody waits.
    NobodyTold,
    /// A grant does not say that others wait, and they tell its owner nothing.
    GrantSaysNothing,
}

impl Defect {
    /// The lines of the scripts that it changes. None for a defect of the client.
    pub(super) fn mutations(self) -> Vec<ScriptMutation> {
        if self == Defect::R11Rewrite {
            return COUNTS_WHAT_IS_LEFT.to_vec();
        }
        self.edits()
            .iter()
            .map(|&(line, instead)| ScriptMutation { line, instead })
            .collect()
    }

    /// Each line, and what replaces it.
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
            Defect::R11 => &[(
                "if length < math.max(entries, waiter and 1 or 0) then",
                "if false then",
            )],
            Defect::Grace => &[("~= string.format('%.0f', fence) then", "~= '' then")],
            Defect::Horizon => &[("served_time + ARGV[3]", "served_time + 3 * ARGV[3]")],
            Defect::R15 => &[("if lease_end - now > lease_us then", "if false then")],
            Defect::Owner => &[("more, owner or '', fence", "more, '', fence")],
            Defect::HandOver => &[(
                "grants = { owner, fence, now, lease_us, previous, waiters_left }",
                "grants = {}",
            )],
            Defect::HoldAtLeast => &[(
                "(mode == 'used' or mode == 'lost') and cool_until > now",
                "false",
            )],
            Defect::Force => &[(
                "if is_owners or fence == callers_fence and lease_end",
                "if owner or lease_end",
            )],
            Defect::OwnerUnchecked => &[(
                "elseif owner == token and not is_stray then\n  -- R9",
                "elseif owner then\n  -- R9",
            )],
            Defect::TogetherUnchecked => &[("fields[3] == tokens[5 + i] and", "fields[3] and")],
            Defect::TogetherTooLong => &[("left, fence = 1000 * ttl", "left, fence = 2000 * ttl")],
            Defect::FenceUnchecked => &[(
                "owner == token and callers_fence > 0 and callers_fence ~= fence",
                "false",
            )],
            Defect::FenceUncheckedAlone => &[(
                "if hold == 0 and fence == callers_fence then",
                "if hold == 0 then",
            )],
            Defect::ReleaseTakenForCooling => &[(
                "if not owner and hold == 0 and lease_end > 0 then lease_end, previous = 0, 0 end",
                "",
            )],
            Defect::ForceForgotten => &[(
                "fields_to_set[#fields_to_set + 1] = 'i'\n    \
                 fields_to_set[#fields_to_set + 1] = token\n",
                "",
            )],
            Defect::EndsForgotten => &[("(earlier_ends, 1, 64)", "(earlier_ends, 1, 8)")],
            Defect::ForceTakenForLapse => &[(
                "ended_how == 2 and -ended_fence or ended_fence",
                "ended_fence",
            )],
            Defect::FenceKept => &[(
                "fence, granted_at = math.max((fence or 0) + 1, now), now",
                "fence, granted_at = fence or now, now",
            )],
            Defect::Capacity => &[(
                "entries == 0\n  and permits_taken + weight <= wanted_capacity then",
                "entries == 0 then",
            )],
            Defect::Overtaking => &[(
                "entries == 0\n  and permits_taken + weight <= wanted_capacity then",
                "permits_taken + weight <= wanted_capacity then",
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
            Defect::DowngradesAll => &[(
                "local kept = math.min(weight, ARGV[8] + 0)",
                "local kept = 0",
            )],
            Defect::OnePerPage => &[(
                "HSCAN', holders_key, page_from, 'COUNT', 32",
                "HSCAN', holders_key, page_from, 'COUNT', forced_fence and 32 or 1",
            )],
            Defect::LookCutShort => &[
                (
                    "HSCAN', holders_key, page_from, 'COUNT', 32",
                    "HSCAN', holders_key, page_from, 'COUNT', forced_fence and 32 or 1",
                ),
                (
                    "look_cursor = page_to ~= '0' and page_to or ''",
                    "page_to = '0'",
                ),
            ],
            Defect::RecordLost => &[("    expires_at = 0\n", "")],
            Defect::PermitHandOver => &[("local count = #grants", "local grants, count = {}, 0")],
            Defect::Lookup => &[("= grant or (values", "= (values")],
            Defect::PermitUnchecked => &[(
                "elseif grant then\n  -- R9",
                "elseif packed_holder then\n  grant = grant or { own_fence, now, 0, 0 }\n  -- R9",
            )],
            Defect::PermitForce => &[(
                "if forced_fence\n        \
                 and string.match(packed_holder, '^%S+ %d+ (%d+)', text_start) + 0 == forced_fence then",
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
            Defect::Shortest => &[
                (
                    "math.min(shortest_lease, look_in)",
                    "math.max(shortest_lease, look_in)",
                ),
                (
                    "math.min(shortest, shortest_lease)",
                    "math.max(shortest, shortest_lease)",
                ),
            ],
            Defect::DowngradeR15 => &[(
                "lease_end = math.min(lease_end, now + 1000 * math.max(ttl, hold))",
                "",
            )],
            Defect::CoolingR15 => &[("math.min(granted_at, now) + 1000", "granted_at + 1000")],
            Defect::LeftTooLong | Defect::LeftBelieved | Defect::LeftDoubted => &[(
                "math.min(lease_end - now, 1000 * math.max(ttl, hold))",
                "lease_end - now",
            )],
            Defect::ForceFirstOnly => {
                &[("callers_fence <= fence + spare", "callers_fence <= fence")]
            }
            Defect::ReserveForgotten => &[("fence = fence + spare", "")],
            Defect::ReserveBurnt => &[("if ARGV[8] then spare = ARGV[8] - fence end", "")],
            // Renewals of mutexes go together on the link, and alone on a lane.
            Defect::RenewalR5 => &[(
                "if now > ARGV[6] + 0 then return { 'late', now, 0 } end",
                "",
            )],
            Defect::JointRenewalR5 => &[(
                "as in mutex_renew.lua.\nif now > ARGV[5] + 0 then return { 'late', now, 0 } end",
                "\n",
            )],
            Defect::ForceR5 => &[(
                "if mode == 'forced' and now > ARGV",
                "if false and now > ARGV",
            )],
            Defect::LastFenceForgotten => &[(
                "previous, fence = 0, (ARGV[8] or fence) + 0",
                "previous = 0",
            )],
            Defect::AnswerIgnored => &[(
                "and unseen_for > ARGV[3] + 0 then",
                "and (ARGV[7] == '2' or unseen_for > ARGV[3] + 0) then\n  \
                 unseen_for = math.max(unseen_for, 2 * ARGV[3])",
            )],
            Defect::NobodyCalled => &[("if ARGV[7] == '0' then\n", "if false then\n")],
            Defect::NobodyTold => &[("if not is_told then", "if false then")],
            Defect::GrantSaysNothing => &[(
                "waiters_left = math.max(0, waiter_records)\n  if waiters_left > 0 and",
                "waiters_left = 0\n  if waiter_records > 0 and",
            )],
            Defect::KeepersAlone => &[],
            Defect::NoWayMade | Defect::WantedIgnored | Defect::AlwaysHeard => &[],
            Defect::NobodyAwaited => &[],
            Defect::LinePlace | Defect::OneTurnMore | Defect::LastFenceUnnamed => &[],
            Defect::R11Rewrite | Defect::MaxHold | Defect::Checks => &[],
            Defect::LeavesWaiters | Defect::LeavesUnread | Defect::LaneDate => &[],
            Defect::RefusedIsDone | Defect::RefusedIsOvertaken | Defect::ResendOrder => &[],
            Defect::R4 | Defect::R5 | Defect::R6 | Defect::R7 | Defect::R8 | Defect::R13 => &[],
        }
    }

    /// Whether the checker compares the time left in each answer with the lease.
    pub(super) fn checks_left(self) -> bool {
        !matches!(self, Defect::LeftBelieved | Defect::LeftDoubted)
    }

    /// Whether only runs whose processes keep locks can find it.
    pub(super) fn is_of_keepers(self) -> bool {
        matches!(
            self,
            Defect::KeepersAlone
                | Defect::NoWayMade
                | Defect::WantedIgnored
                | Defect::AlwaysHeard
                | Defect::NobodyTold
                | Defect::GrantSaysNothing
        )
    }

    /// Whether runs of this kind can find it.
    pub(super) fn concerns(self, kind: ModelKind) -> bool {
        let is_mutex = kind == ModelKind::Mutex;
        match self {
            Defect::R10 | Defect::Grace | Defect::R15 | Defect::Owner | Defect::HandOver => {
                is_mutex
            }
            Defect::Force | Defect::OwnerUnchecked | Defect::FenceKept | Defect::Unknown => {
                is_mutex
            }
            Defect::TogetherUnchecked | Defect::TogetherTooLong => is_mutex,
            Defect::FenceUnchecked
            | Defect::FenceUncheckedAlone
            | Defect::ReleaseTakenForCooling
            | Defect::ForceForgotten
            | Defect::EndsForgotten
            | Defect::ForceTakenForLapse => is_mutex,
            Defect::LinePlace | Defect::OneTurnMore | Defect::ForceFirstOnly => is_mutex,
            Defect::ReserveForgotten | Defect::LastFenceForgotten => is_mutex,
            Defect::ReserveBurnt | Defect::JointRenewalR5 => is_mutex,
            Defect::RenewalR5 | Defect::ForceR5 => true,
            Defect::LastFenceUnnamed => is_mutex,
            Defect::NoWayMade | Defect::WantedIgnored | Defect::AlwaysHeard => is_mutex,
            Defect::NobodyTold | Defect::GrantSaysNothing | Defect::KeepersAlone => is_mutex,
            Defect::Capacity | Defect::Overtaking | Defect::PermitR10 | Defect::Tombstone => {
                !is_mutex
            }
            Defect::PermitGrace
            | Defect::PermitR15
            | Defect::PermitFenceKept
            | Defect::ReleasesMore => !is_mutex,
            Defect::LookCutShort | Defect::RecordLost | Defect::PermitHandOver | Defect::Lookup => {
                !is_mutex
            }
            Defect::OnePerPage => !is_mutex,
            Defect::PermitUnchecked
            | Defect::PermitForce
            | Defect::TombstoneStep
            | Defect::Shortest => !is_mutex,
            Defect::LeftTooLong | Defect::LeftBelieved | Defect::LeftDoubted => !is_mutex,
            Defect::ReaderRaises | Defect::DowngradesAll | Defect::DowngradeR15 => {
                matches!(kind, ModelKind::ReadWrite(_))
            }
            // All kinds have these rules. They show soonest where one caller alone can hold.
            Defect::R7 | Defect::R8 | Defect::R11 => is_mutex,
            Defect::R11Rewrite => true,
            Defect::R2 | Defect::R3 | Defect::R4 | Defect::R5 | Defect::R6 | Defect::R13 => true,
            Defect::Horizon | Defect::Checks | Defect::HoldAtLeast | Defect::MaxHold => true,
            Defect::CoolingR15 => true,
            Defect::NobodyAwaited | Defect::AnswerIgnored | Defect::NobodyCalled => true,
            Defect::LeavesWaiters | Defect::LeavesUnread | Defect::LaneDate => true,
            Defect::RefusedIsDone | Defect::RefusedIsOvertaken | Defect::ResendOrder => true,
        }
    }
}
