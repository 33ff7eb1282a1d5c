//! How the renewal thread sees that connections log in anew before their credentials end.

use super::thread::RenewalThread;
use crate::store::clock::Time;

impl RenewalThread {
    /// When to look at the logins. While credentials end at all, a check period at the latest: a new
    /// connection may have got some that end sooner, and the link has to learn of newer ones.
    pub(super) fn logins_due(&self) -> Time {
        match self.client.store().logins_due() {
            Time::NEVER => Time::NEVER,
            due => due.min(self.client.now() + self.client.config().check_period),
        }
    }

    pub(super) fn renew_logins(&mut self, now: Time) {
        let due = self.client.store().logins_due();
        if due <= now {
            self.client.store().renew_logins();
        }
        if due != Time::NEVER {
            self.link.log_in_anew();
        }
    }
}
