//! How the renewal thread reads the replies that nobody waits for: those to the releases of dropped
//! guards. Most of them are read by the next caller on the same lane.

use super::thread::RenewalThread;
use crate::engine::upkeep::EndAll;
use crate::store::clock::Time;

impl RenewalThread {
    /// When to read replies that nobody has read until then.
    pub(super) fn unread_due(&self) -> Time {
        // A caller may be reading just now, and reads them all. Then they are overdue for a moment,
        // and this thread must not spin.
        let pause = self.client.config().command_timeout / 8;
        self.client.store().unread_due().max(self.read_at + pause)
    }

    pub(super) fn read_unread(&mut self, now: Time) {
        if self.unread_due() <= now {
            self.releasing.take_replies_left();
            self.client.store().read_unread();
            self.read_at = now;
        } else if self.client.store().unread_due() == Time::NEVER
            && self.releasing.take_replies_left()
        {
            // Callers have left replies, and other callers have read them. More are likely. The
            // first of them would wake this thread, if it slept for longer than they may lie.
            let next = now + self.client.config().command_timeout;
            self.look_again_at = self.look_again_at.min(next);
        }
    }

    /// For a shutdown: reads the replies to the releases of guards that were dropped before it. The
    /// releases that fail are in the report.
    ///
    /// Each of them has one command timeout. So this ends one after the command was sent, and
    /// leaves the shutdown its time for the releases that are still to be sent.
    pub(super) fn read_all_unread(&self, shutdown: &EndAll) {
        let store = &self.client.store();
        store.read_all_unread(shutdown.report_by - self.client.config().command_timeout);
        store.read_unread();
    }
}
