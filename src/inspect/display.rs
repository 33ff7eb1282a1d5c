//! Shows [`LockInfo`] and its parts to people: one line each.

use std::fmt;

use super::{LockInfo, LockState, Party};
use crate::loss::PreviousHolder;
use crate::script::Origin;
use crate::time_text::measured;

/// `"invoices:42": mutex, held by …, fence 7, 9.2s left, 3 waiting`, and `previous holder: lapsed` or
/// `forced` if the last holder left its work half done.
impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}, {}", self.name, self.kind, self.state)?;
        if let Some(holder) = &self.holder {
            let by = match self.state {
                LockState::Held if holder.keeps => " or kept by",
                LockState::Held | LockState::Detached => " by",
                _ => ", last held by",
            };
            write!(f, "{by} {holder}")?;
            // After all have lapsed, the others are those that lapsed with it.
            let others = self.holders.len().max(match self.state {
                LockState::Lapsed => self.lapsed.len(),
                _ => 0,
            });
            match others {
                0 | 1 => {}
                2 => f.write_str(", and 1 other holder")?,
                many => write!(f, ", and {} other holders", many - 1)?,
            }
            write!(f, ", fence {}", self.fence)?;
            if self.state != LockState::Lapsed {
                write!(f, ", {} left", measured(self.time_left))?;
            }
        }
        write!(f, ", {} waiting", self.waiters)?;
        // In the state `Lapsed` the line has said so.
        let (how, state) = (self.previous_holder, self.state);
        if matches!(how, PreviousHolder::Lapsed | PreviousHolder::Forced)
            && state != LockState::Lapsed
        {
            write!(f, ", previous holder: {how}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockState::Held => "held",
            LockState::Detached => "detached",
            LockState::Cooling => "cooling",
            LockState::Lapsed => "lapsed",
            LockState::Free => "free",
        })
    }
}

/// `process 4711 on web-1, thread main#4711, label "nightly"`, and next `reader`, or
/// `3 permits` if it is more than one. `(its first guard)` follows for a holder whose process may
/// have passed the lock on since.
impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Origin {
            host: &self.host,
            pid: self.pid,
            thread: &self.thread,
            thread_id: self.thread_id,
            label: &self.label,
        };
        origin.fmt(f)?;
        if self.shared {
            f.write_str(", reader")?;
        }
        if self.permits > 1 {
            write!(f, ", {} permits", self.permits)?;
        }
        if self.hands_over && self.fence.is_some() {
            f.write_str(" (its first guard)")?;
        }
        if let Some(ago) = self.lapsed_for {
            write!(f, ", whose lease ended {} ago", measured(ago))?;
        }
        Ok(())
    }
}
