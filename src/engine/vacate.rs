//! How a name becomes another kind of lock. The two families of scripts keep their data in
//! different forms. So an acquire that finds the other form vacates the name first, if nobody uses
//! it.

use crate::engine::Engine;
use crate::script::{Call, Family, LockSpec, Outcome, Verb};
use crate::store::{CallResult, Deadlines};

impl Engine {
    /// Sends acquires. If the name of one is a kind of lock of the other family, this vacates the
    /// name and sends the acquire again, all by the same deadlines. If somebody uses the name, the
    /// acquire keeps the answer that names its kind. If there is no answer to that, the acquire has
    /// the same fault.
    pub(super) fn send_acquires(&self, calls: &[Call], deadlines: Deadlines) -> Vec<CallResult> {
        let mut results = self.store.run(calls, deadlines);
        let mut refused = Vec::new();
        let mut vacates = Vec::new();
        for (at, (call, result)) in calls.iter().zip(&results).enumerate() {
            if let Some(family) = other_family(call, result) {
                refused.push(at);
                vacates.push(Call {
                    spec: LockSpec::any(family),
                    key: call.key.clone(),
                    verb: Verb::Vacate,
                });
            }
        }
        // The loop ends early for nearly all calls: their names are of their kind.
        let mut again = Vec::new();
        while !vacates.is_empty() {
            let answers = self.store.run(&vacates, deadlines);
            let mut unfinished = (Vec::new(), Vec::new());
            for ((at, vacate), vacated) in refused.into_iter().zip(vacates).zip(answers) {
                match vacated.answer {
                    Ok(answer) => {
                        self.deliver_all(&vacate, &answer);
                        if answer.reply.outcome == Outcome::Vacated {
                            again.push(at);
                        } else if answer.reply.more && self.now() < deadlines.reply_by {
                            unfinished.0.push(at);
                            unfinished.1.push(vacate);
                        }
                    }
                    Err(fault) => results[at].answer = Err(fault),
                }
            }
            (refused, vacates) = unfinished;
        }
        if again.is_empty() {
            return results;
        }
        let repeated: Vec<Call> = again.iter().map(|at| calls[*at].clone()).collect();
        for (at, next) in again.into_iter().zip(self.store.run(&repeated, deadlines)) {
            results[at].take_next(next);
        }
        results
    }
}

/// The family of the kind that the name is, if that is not the call's own.
fn other_family(call: &Call, result: &CallResult) -> Option<Family> {
    let Ok(answer) = &result.answer else {
        return None;
    };
    let Outcome::Kind(kind) = &answer.reply.outcome else {
        return None;
    };
    Family::of_kind(kind).filter(|family| *family != call.spec.family)
}
