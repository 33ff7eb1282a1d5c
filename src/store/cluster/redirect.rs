//! A node's refusal says where a call belongs.

use std::sync::Arc;

use super::members::ClusterNode;
use super::slots::slot_of;
use super::state::ClusterState;
use crate::script::{Call, Form};
use crate::store::again::{Attempts, Ending, Next};
use crate::store::node::{Hop, Pending};
use crate::store::{Address, CallResult, StoreFault};

/// How many redirects of one call are remembered.
const MOST_REDIRECTS: usize = 16;

/// The way of one call to the node that serves it.
pub(super) struct Route {
    slot: u16,
    form: Form,
    /// The node that the owner named by ASK. The next attempt goes there.
    ask_target: Option<Arc<ClusterNode>>,
    attempts: Attempts,
    /// The results of the attempts before, as one.
    before: Option<CallResult>,
    /// The nodes that sent the call on, each with the node that it named, in this order.
    redirects: Vec<Redirect>,
}

struct Redirect {
    by: Address,
    to: Address,
}

impl Route {
    pub(super) fn new(call: &Call) -> Route {
        Route {
            slot: slot_of(&call.key),
            form: Form::default(),
            ask_target: None,
            attempts: Attempts::default(),
            before: None,
            redirects: Vec::new(),
        }
    }

    /// The way of a call that was sent in this form, after these attempts.
    pub(super) fn resumed(call: &Call, form: Form, attempts: Attempts) -> Route {
        Route {
            form,
            attempts,
            ..Route::new(call)
        }
    }

    /// The node that the call goes to next. `None` if nobody is known to own its slot.
    pub(super) fn target(&self, state: &ClusterState) -> Option<Arc<ClusterNode>> {
        match &self.ask_target {
            Some(target) => Some(Arc::clone(target)),
            None => state.map().owner(self.slot).cloned(),
        }
    }

    pub(super) fn pending<'a>(&self, call: &'a Call) -> Pending<'a> {
        let (form, hop) = self.form_and_hop();
        Pending::routed(call, form, hop)
    }

    pub(super) fn form_and_hop(&self) -> (Form, Hop) {
        let hop = match self.ask_target {
            Some(_) => Hop::AskTarget,
            None => Hop::Owner,
        };
        (self.form, hop)
    }

    pub(super) fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// From now on, the call brings its script's source.
    pub(super) fn bring_source(&mut self) {
        self.form.by_source = true;
    }

    /// Takes the result of an attempt at the node at `asked`. If that is the last, it is the call's
    /// result: see [`Route::take_result`].
    pub(super) fn take(
        &mut self,
        state: &ClusterState,
        call: &Call,
        asked: &Address,
        result: CallResult,
    ) -> Next {
        let is_sent = !result.is_not_ready();
        let result = result.after(self.before.take());
        let ending = match &result.answer {
            Err(fault) if is_sent => self.ending(state, call, asked, fault),
            _ => None,
        };
        self.before = Some(result);
        self.attempts.after(ending.unwrap_or(Ending::Final))
    }

    /// How an attempt with this fault ended, and where the next one goes. `None`: it is the last.
    fn ending(
        &mut self,
        state: &ClusterState,
        call: &Call,
        asked: &Address,
        fault: &StoreFault,
    ) -> Option<Ending> {
        let was_owner = self.ask_target.take().is_none();
        if !fault.is_redirect() {
            self.redirects.clear();
        }
        match fault.code() {
            Some("MOVED") => {
                let (host, port) = redirect_target(fault)?;
                state.on_moved(self.slot, (host, port), asked);
                self.note_redirect(asked, Address::named_by(asked, host, port));
                Some(Ending::SentOn)
            }
            Some("ASK") if was_owner => {
                let (host, port) = redirect_target(fault)?;
                let target = state.member_at(&Address::named_by(asked, host, port));
                target.note_redirect_target();
                self.note_redirect(asked, target.address.clone());
                self.ask_target = Some(target);
                Some(Ending::SentOn)
            }
            // R11 (missing keys): the single-key form goes to the slot's owner first. Its target
            // would grant a lock whose record has not come yet, and the holder goes on renewing it
            // at the owner. So the target gets this form only after the owner's ASK to it.
            Some("TRYAGAIN") if !self.form.single_key && call.has_single_key_form() => {
                self.form.single_key = true;
                Some(Ending::SentOn)
            }
            Some("TRYAGAIN" | "ASK") => {
                self.form.single_key = false;
                Some(Ending::NotServed)
            }
            Some("CLUSTERDOWN" | "READONLY" | "MASTERDOWN" | "UNBLOCKED") => {
                state.want_refresh();
                Some(Ending::NotServed)
            }
            Some(_) => None,
            None if matches!(fault, StoreFault::NotReplicated { .. }) => None,
            None => {
                // The node may be dead, and another may own its slots by now, or soon.
                state.want_refresh();
                is_unreached(fault).then_some(Ending::Unreached)
            }
        }
    }

    fn note_redirect(&mut self, by: &Address, to: Address) {
        // A row that is longer has no end, or a round at its end.
        if self.redirects.len() < MOST_REDIRECTS {
            let by = by.clone();
            self.redirects.push(Redirect { by, to });
        }
    }

    /// How often the call was sent on to a node that had sent it on before. Two nodes can name each
    /// other for a moment.
    pub(super) fn rounds(&self) -> usize {
        let before = |at: usize| &self.redirects[..at];
        let is_back =
            |(at, next): &(usize, &Redirect)| before(*at + 1).iter().any(|r| r.by == next.to);
        self.redirects.iter().enumerate().filter(is_back).count()
    }

    /// The same result. If the call only went round, the message says so.
    fn explained(&self, mut result: CallResult) -> CallResult {
        if self.rounds() > 0
            && let Err(StoreFault::Server { code, message, .. }) = &mut result.answer
            && matches!(code.as_str(), "MOVED" | "ASK")
        {
            let mut named: Vec<String> = Vec::new();
            for Redirect { by, to } in &self.redirects {
                let step = format!("{by} names {to}");
                if !named.contains(&step) {
                    named.push(step);
                }
            }
            *message = format!(
                "no node serves slot {}: {}; see redis-cli --cluster check",
                self.slot,
                named.join(", ")
            );
        }
        result
    }

    pub(super) fn no_owner(&self) -> StoreFault {
        no_owner(self.slot)
    }

    /// Whether a node has refused it, and none is to be asked at once.
    pub(super) fn is_refused(&self) -> bool {
        let before = self.before.as_ref();
        let fault = before.and_then(|before| before.answer.as_ref().err());
        fault.is_some_and(|fault| fault.code().is_some())
    }

    /// Whether it must not be sent on at once any more.
    pub(super) fn was_sent_on_too_often(&self) -> bool {
        self.attempts.was_sent_on_too_often()
    }

    /// The result of all attempts, as the last one left it.
    pub(super) fn take_result(&mut self) -> CallResult {
        let before = self.before.take();
        before.unwrap_or_else(|| CallResult::not_sent(no_owner(self.slot)))
    }

    /// The result of all attempts, of which the last was refused.
    pub(super) fn take_refusal(&mut self) -> CallResult {
        let result = self.take_result();
        self.explained(result)
    }

    /// The result when no time is left for another attempt.
    pub(super) fn into_refusal(mut self) -> CallResult {
        self.take_refusal()
    }
}

/// Whether the node could not be reached, or closed the connection. A node that is only late may have
/// carried out the call, and has used up the time.
fn is_unreached(fault: &StoreFault) -> bool {
    match fault {
        StoreFault::Unavailable { .. } => !fault.is_ambiguous() || fault.is_closed(),
        StoreFault::InDoubt(fault) => is_unreached(fault),
        _ => false,
    }
}

/// The fault of a call whose slot nobody is known to own.
fn no_owner(slot: u16) -> StoreFault {
    StoreFault::server(
        "CLUSTERDOWN",
        format!("no node is known to own slot {slot}"),
    )
}

/// The host and the port in `7798 127.0.0.1:7001`, the text behind MOVED and ASK. The host may be
/// missing.
fn redirect_target(fault: &StoreFault) -> Option<(&str, u16)> {
    let message = match fault {
        StoreFault::Server { message, .. } => message,
        StoreFault::InDoubt(fault) => return redirect_target(fault),
        _ => return None,
    };
    let (_, target) = message.split_once(' ')?;
    let (host, port) = target.trim().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::state;
    use super::*;
    use crate::key::Key;
    use crate::script::{Family, LockSpec, Verb};

    fn look() -> Call {
        Call {
            spec: LockSpec::any(Family::Mutex),
            key: Key::new("fairlock", "a").expect("a name"),
            verb: Verb::Inspect {
                waiters: 0,
                from: 0,
            },
        }
    }

    /// The route of a call that these nodes refuse with these words, one after the other.
    fn refused(refusals: &[(u16, &str, &str)]) -> Route {
        let (state, _) = state();
        let call = look();
        let mut route = Route::new(&call);
        for (port, code, details) in refusals {
            let asked = Address::Tcp("10.0.0.1".to_owned(), *port);
            let fault = StoreFault::refused(code, details);
            route.take(&state, &call, &asked, CallResult::not_sent(fault));
        }
        route
    }

    #[test]
    fn rounds_of_any_length_are_noticed() {
        for (refusals, rounds) in [
            (&[(7001, "MOVED", "1 :7002")][..], 0),
            (&[(7001, "MOVED", "1 :7002"), (7002, "MOVED", "1 :7003")], 0),
            // To itself.
            (&[(7001, "MOVED", "1 :7001")], 1),
            (
                &[
                    (7001, "MOVED", "1 :7002"),
                    (7002, "MOVED", "1 10.0.0.1:7001"),
                ],
                1,
            ),
            (&[(7001, "ASK", "1 :7002"), (7002, "MOVED", "1 :7001")], 1),
            (
                &[
                    (7001, "MOVED", "1 :7002"),
                    (7002, "MOVED", "1 :7003"),
                    (7003, "MOVED", "1 :7001"),
                    (7001, "MOVED", "1 :7002"),
                ],
                2,
            ),
            // A node that decides later ends the row.
            (
                &[
                    (7001, "MOVED", "1 :7002"),
                    (7002, "MOVED", "1 :7001"),
                    (
                        7001,
                        "TRYAGAIN",
                        "Multiple keys request during rehashing of slot",
                    ),
                ],
                0,
            ),
        ] {
            assert_eq!(refused(refusals).rounds(), rounds, "{refusals:?}");
        }
        let long: Vec<_> = (0..100)
            .map(|at| {
                (
                    7000 + at % 2,
                    "MOVED",
                    ["1 :7001", "1 :7000"][usize::from(at % 2)],
                )
            })
            .collect();
        assert_eq!(refused(&long).redirects.len(), MOST_REDIRECTS);
    }

    #[test]
    fn refusal_says_that_the_call_only_went_round() {
        let route = refused(&[(7001, "MOVED", "9 :7002"), (7002, "MOVED", "9 :7001")]);
        let text = route
            .into_refusal()
            .answer
            .expect_err("refused")
            .to_string();
        let is_right =
            text.contains("10.0.0.1:7001 names 10.0.0.1:7002, 10.0.0.1:7002 names 10.0.0.1:7001");
        assert!(is_right && text.contains("no node serves slot"), "{text}");
        let route = refused(&[(7001, "MOVED", "9 :7002")]);
        let text = route
            .into_refusal()
            .answer
            .expect_err("refused")
            .to_string();
        assert!(text.contains("MOVED 9 :7002"), "{text}");
    }

    #[test]
    fn redirect_names_a_host_or_none() {
        for (message, host, port) in [
            ("7798 127.0.0.1:22021", "127.0.0.1", 22021),
            ("7798 :22021", "", 22021),
            ("1 node-3.example:7000", "node-3.example", 7000),
            ("1 ::1:7000", "::1", 7000),
        ] {
            let fault = StoreFault::refused("MOVED", message);
            assert_eq!(redirect_target(&fault), Some((host, port)), "{message}");
        }
        for message in [
            "",
            "7798",
            "7798 host",
            "7798 host:port",
            "1 h:70000",
            "1 h:-1",
            "1 h:0",
        ] {
            let fault = StoreFault::refused("MOVED", message);
            assert_eq!(redirect_target(&fault), None, "{message}");
        }
    }
}
