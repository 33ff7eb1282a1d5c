//! What can be left out of the protocol, to see that the simulator finds it.

use crate::script;
use crate::store::memory::server::Server;

/// A rule that is left out, or a line of a script that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Served time grows by all time that passes, an outage included.
    R2,
    /// Requests are good for longer than their callers wait.
    R5,
    /// What is given back is not given back again while a late copy could take it.
    R7,
    /// News of a grant counts at once, whatever request of its token is in flight.
    R8,
    /// A queue that lost its entries is not noticed.
    R11,
    /// A grant that nobody wants is not given back.
    R13,
    /// Whoever asks releases the lock.
    OwnerUnchecked,
    /// A hand-over repeats the fence of the grant before.
    FenceKept,
}

impl Defect {
    /// A line of the scripts, and what takes its place.
    fn edit(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Defect::R2 => {
                ("rec.v = rec.v + math.max(0, math.min(now - rec.s, step))", "rec.v = rec.v + math.max(0, now - rec.s)")
            }
            Defect::R11 => ("if length < rec.n then", "if false then"),
            Defect::OwnerUnchecked => ("elseif rec.owner == token then\n  -- R9", "elseif rec.owner then\n  -- R9"),
            Defect::FenceKept => ("rec.f = math.max((rec.f or 0) + 1, now)", "rec.f = rec.f or now"),
            Defect::R5 | Defect::R7 | Defect::R8 | Defect::R13 => return None,
        })
    }

    /// Gives a server the scripts with this defect.
    pub(super) fn put_into(self, server: &mut Server) {
        let Some((line, other)) = self.edit() else { return };
        let sources: Vec<&str> = script::sources().filter(|source| source.contains(line)).collect();
        assert!(!sources.is_empty(), "{self:?}: no script has {line:?}");
        for source in sources {
            server.replace(source, &source.replace(line, other)).expect("the script with the defect is Lua");
        }
    }
}
