//! What can be left out of the protocol, to see that the simulator finds it.

use crate::script;
use crate::store::memory::server::Server;

/// A rule that is left out, or a line of a script that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
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
}

impl Defect {
    /// Lines of the scripts, and what takes the place of each.
    fn edits(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Defect::R2 => &[("v = v + math.max(0, math.min(passed, step))", "v = v + math.max(0, passed)")],
            Defect::R3 => &[("alive = manager                                 -- R3\n", "")],
            Defect::R10 => &[("dead[holder] = true\n      del[#del + 1] = 'm:' .. holder", "")],
            Defect::R11 => &[("if length < n then", "if false then")],
            Defect::Grace => &[("~= string.format('%.0f', f) then", "~= '' then")],
            Defect::Horizon => &[("v + ARGV[3]", "v + 3 * ARGV[3]")],
            Defect::R15 => &[("if e - now > cap then", "if false then")],
            Defect::Owner => &[("owner or '', f", "'', f")],
            Defect::HandOver => &[("grants = { owner, f, now, left, d }", "grants = {}")],
            Defect::HoldAtLeast => &[("(mode == 'used' or mode == 'lost') and cool > now", "false")],
            Defect::Force => &[("f == fence and (owner", "f and (owner")],
            Defect::OwnerUnchecked => &[("elseif owner == token then\n  -- R9", "elseif owner then\n  -- R9")],
            Defect::FenceKept => &[("f, g = math.max((f or 0) + 1, now), now", "f, g = f or now, now")],
            Defect::MaxHold | Defect::Checks => &[],
            Defect::R4 | Defect::R5 | Defect::R6 | Defect::R7 | Defect::R8 | Defect::R13 => &[],
        }
    }

    /// Gives a server the scripts with this defect.
    pub(super) fn put_into(self, server: &mut Server) {
        for (line, other) in self.edits() {
            let sources: Vec<&str> = script::sources().filter(|source| source.contains(line)).collect();
            assert!(!sources.is_empty(), "{self:?}: no script has {line:?}");
            for source in sources {
                server.replace(source, &source.replace(line, other)).expect("the script with the defect is Lua");
            }
        }
    }
}
