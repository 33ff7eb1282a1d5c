//! The scripts on its server that a connection knows, and so in which form the next call goes.
//!
//! A call names its script by a digest. A server that does not know the script refuses the call
//! (NOSCRIPT), and takes it once it brings the source. One source is for all calls behind it, so only the
//! first copy on a connection brings it. R20 (write order) is kept by the order of the calls.

use crate::script::{Call, Form, SCRIPTS};

/// The scripts of one connection.
#[derive(Default)]
pub(super) struct Scripts {
    /// The server has run these for this connection.
    known: ScriptSet,
    /// How many calls were numbered, and which of them was the last with each script's source.
    numbered: u64,
    sources: [u64; SCRIPTS],
}

/// Some scripts, by their numbers: a bit for each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScriptSet(u64);

impl ScriptSet {
    pub(super) fn has(self, script: usize) -> bool {
        self.0 & bit(script) != 0
    }

    /// Adds a script. False if the set has it already.
    pub(super) fn add(&mut self, script: usize) -> bool {
        let is_new = !self.has(script);
        self.0 |= bit(script);
        is_new
    }

    fn remove(&mut self, script: usize) {
        self.0 &= !bit(script);
    }
}

fn bit(script: usize) -> u64 {
    const { assert!(SCRIPTS <= 64) };
    1 << script
}

impl Scripts {
    /// Whether the server has run the call's script for this connection. It may have forgotten it since.
    pub(super) fn knows(&self, call: &Call) -> bool {
        call.script_id().is_none_or(|id| self.known.has(id))
    }

    /// The server has run this script, or has refused it as unknown.
    pub(super) fn note(&mut self, script: Option<usize>, is_known: bool) {
        match script {
            Some(id) if is_known => _ = self.known.add(id),
            Some(id) => self.known.remove(id),
            None => {}
        }
    }

    /// The form of a call that must not be refused for its form: it brings the source unless the server
    /// has run the script.
    pub(super) fn form_for(&self, call: &Call, form: Form) -> Form {
        Form {
            by_source: form.by_source || !self.knows(call),
            ..form
        }
    }

    /// The number of a call that is about to be appended. `refused` is its last number, or 0. Of the
    /// calls that are to bring the source, only the first does: of new ones, and of those that were
    /// refused since the server forgot the script.
    pub(super) fn number(&mut self, call: &Call, form: &mut Form, refused: u64) -> u64 {
        self.numbered += 1;
        if let Some(script) = call.script_id().filter(|_| form.by_source) {
            form.by_source = self.sources[script] <= refused;
            if form.by_source {
                self.sources[script] = self.numbered;
            }
        }
        self.numbered
    }
}
