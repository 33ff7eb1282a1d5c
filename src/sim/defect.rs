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
            Defect::R2 => &[(
                "rec.v = rec.v + math.max(0, math.min(now - rec.s, step))",
                "rec.v = rec.v + math.max(0, now - rec.s)",
            )],
            Defect::R3 => &[
                ("stamps[manager] = rec.v + tonumber(ARGV[3])     -- R3\n", ""),
                ("lapse(nil)\n", "lapse(nil)\npromote(nil)\n"),
            ],
            Defect::R10 => &[("stamps[by] = -1\n    del[#del + 1] = 'm:' .. by", "")],
            Defect::R11 => &[("if length < rec.n then", "if false then")],
            Defect::Grace => &[("~= int(rec.f) then", "~= '' then")],
            Defect::Horizon => &[
                ("rec.v + tonumber(ARGV[3])     -- R3", "rec.v + 3 * tonumber(ARGV[3])"),
                ("rec.v + tonumber(ARGV[3]), true, true", "rec.v + 3 * tonumber(ARGV[3]), true, true"),
            ],
            Defect::R15 => &[("if rec.e - now > cap then", "if false then")],
            Defect::Owner => &[("{ rec.owner or '', rec.f", "{ '', rec.f")],
            Defect::HandOver => &[("grants = { head, unpack(held()) }", "grants = {}")],
            Defect::HoldAtLeast => &[("(mode == 'used' or mode == 'lost') and cool > now", "false")],
            Defect::Force => &[("rec.f == fence and (rec.owner", "rec.f and (rec.owner")],
            Defect::OwnerUnchecked => &[("elseif rec.owner == token then\n  -- R9", "elseif rec.owner then\n  -- R9")],
            Defect::FenceKept => &[("rec.f = math.max((rec.f or 0) + 1, now)", "rec.f = rec.f or now")],
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
