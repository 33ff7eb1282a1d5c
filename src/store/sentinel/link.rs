//! The renewal thread's way to the master, whichever server that is.

use std::sync::{Arc, Weak};

use super::master::Master;
use super::resolver::{Resolver, Trouble};
use crate::script::Call;
use crate::store::clock::Time;
use crate::store::{CallResult, Link};

pub(super) struct MasterLink {
    resolver: Arc<Resolver>,
    on_ready: Arc<dyn Fn() + Send + Sync>,
    /// The master that the link below goes to. Its lanes end without this link.
    master: Weak<Master>,
    link: Box<dyn Link>,
    checked_at: Time,
    has_moved: bool,
}

impl MasterLink {
    pub(super) fn new(
        resolver: &Arc<Resolver>,
        on_ready: Arc<dyn Fn() + Send + Sync>,
    ) -> MasterLink {
        resolver.masters().on_change(Arc::clone(&on_ready));
        let master = resolver.master();
        MasterLink {
            resolver: Arc::clone(resolver),
            link: master.node.link(Arc::clone(&on_ready)),
            master: Arc::downgrade(&master),
            on_ready,
            checked_at: resolver.last_begun(),
            has_moved: false,
        }
    }

    /// The current master, with a link to it.
    fn follow(&mut self) -> Arc<Master> {
        let master = self.resolver.master();
        if !std::ptr::eq(self.master.as_ptr(), Arc::as_ptr(&master)) {
            self.master = Arc::downgrade(&master);
            let on_ready = Arc::clone(&self.on_ready);
            self.link = master.node.link(on_ready);
            self.has_moved = true;
        }
        master
    }
}

impl Link for MasterLink {
    fn run(&mut self, calls: &[Call]) -> Vec<CallResult> {
        let master = self.follow();
        let results = self.link.run(calls);
        if let Some(trouble) = results.iter().filter_map(Trouble::of).max() {
            self.resolver.note_trouble(&master, trouble);
        }
        results
    }

    fn log_in_anew(&mut self) {
        self.link.log_in_anew();
    }

    fn check_due(&self) -> Time {
        // The resolution that this link asked for may not have begun yet.
        self.checked_at.max(self.resolver.last_begun()) + self.resolver.config().check_period
    }

    fn check(&mut self) {
        self.checked_at = self.resolver.clock().now();
        self.resolver.check();
    }

    fn has_moved(&mut self) -> bool {
        self.follow();
        std::mem::take(&mut self.has_moved)
    }
}
