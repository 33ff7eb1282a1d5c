//! The line in the log about a wait that lasts long: it names the holder.

use std::fmt;
use std::time::Duration;

use super::schedule::Answered;
use crate::engine::log_text::{Details, ThreadText, label_detail};
use crate::engine::upkeep::LongWait;
use crate::logging::Logger;
use crate::script::{Call, Family, InspectedHolder, Inspection, Outcome, Requester};
use crate::store::Answer;
use crate::store::clock::Time;
use crate::time_text::measured;

/// Logs the line, if the wait is not over. `result` is that of the wait's call, and so many `callers`
/// of this manager wait for the name.
pub(super) fn report(wait: &LongWait, call: &Call, result: Answered, callers: usize, now: Time) {
    let holder = match result {
        Err(fault) => format!("the holder is not known, because redis did not say: {fault}"),
        Ok(Answer { reply, .. }) => holder_text(&reply.outcome, call.spec.family, reply.now),
    };
    let request = &wait.waiter.request;
    if !wait.waiter.state.lock().awaits_grant() {
        return;
    }
    let position = wait.waiter.position();
    log::warn!(
        logger: Logger,
        "{} has waited {} for {:?}{}: {holder}{}",
        ThreadText {
            thread: &wait.thread,
            id: None
        },
        measured(now - wait.since),
        request.key.name,
        Details([
            label_detail(request.label()),
            position.map(|position| format!("position {position}")),
        ]),
        Others(callers.saturating_sub(1))
    );
}

/// The other waiters of this manager for the name, which this line speaks for.
struct Others(usize);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str("; 1 more waiter of this manager"),
            many => write!(f, "; {many} more waiters of this manager"),
        }
    }
}

/// Names the holder, by the reply to an inspect. `server_time` is in µs, if the reply has it.
fn holder_text(outcome: &Outcome, family: Family, server_time: Option<u64>) -> String {
    let seen = match outcome {
        Outcome::Absent => return "nobody holds it".to_owned(),
        Outcome::Inspection(seen) => seen,
        other => {
            return format!(
                "the holder is not known: redis sent an unexpected reply: {}",
                other.word()
            );
        }
    };
    let Some(holder) = shown(seen) else {
        return "nobody holds it".to_owned();
    };
    let requester = Requester::read(&holder.request, family);
    let who = requester.map_or_else(
        || "an unknown holder".to_owned(),
        |r| match r.params.hands_over() {
            true => format!("{} (its first guard)", r.params.origin),
            false => r.params.origin.to_string(),
        },
    );
    let keeps = requester.is_some_and(|r| r.params.keeps());
    if let Some(ago) = holder.lapsed_for {
        return format!(
            "the lease of {who} ended {} ago, without a release",
            measured(ago)
        );
    }
    if holder.cools {
        return format!(
            "it cools for {}, after {who} released it",
            measured(holder.left)
        );
    }
    let held = server_time.map(|now| Duration::from_micros(now.saturating_sub(holder.granted_at)));
    let held = held.map_or_else(String::new, |held| format!(" for {}", measured(held)));
    let more = match seen.holders.len() - 1 {
        0 => String::new(),
        1 => ", and by 1 more".to_owned(),
        many => format!(", and by {many} more"),
    };
    let or_kept = if keeps { " or kept" } else { "" };
    format!("held{or_kept}{held} by {who}{more}")
}

/// The holder that a line names: one that holds it, else one that cools, else one that lapsed. If
/// several hold it, the one that has held it longest.
fn shown(seen: &Inspection) -> Option<&InspectedHolder> {
    let rank = |holder: &&InspectedHolder| {
        let is_lapsed = holder.lapsed_for.is_some();
        (is_lapsed, holder.cools, holder.granted_at)
    };
    seen.holders.iter().min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::PreviousHolder;

    fn holder(granted_at: u64, label: &str) -> InspectedHolder {
        InspectedHolder {
            cools: false,
            fence: 7,
            granted_at,
            left: Duration::from_secs(9),
            lapsed_for: None,
            permits: 1,
            request: format!(
                "1 {granted_at} 0123456789abcdef 10000 0 0 web-1\t4711\tmain#4712\t{label}"
            ),
        }
    }

    fn text(holders: Vec<InspectedHolder>, server_time: Option<u64>) -> String {
        let seen = Inspection {
            seen_at: server_time.unwrap_or_default(),
            kind: "mutex/1".to_owned(),
            fence: 7,
            holders,
            waiters: 1,
            queue: Vec::new(),
            previous: PreviousHolder::Released,
            ended: 0,
            served: 0,
        };
        holder_text(
            &Outcome::Inspection(Box::new(seen)),
            Family::Mutex,
            server_time,
        )
    }

    #[test]
    fn holder_is_named_with_the_time_for_which_it_holds() {
        assert_eq!(
            text(vec![holder(1_000_000, "nightly")], Some(66_100_000)),
            "held for 1m 05s by process 4711 on web-1, thread main#4712, label \"nightly\""
        );
        assert_eq!(
            text(vec![holder(1_000_000, "")], None),
            "held by process 4711 on web-1, thread main#4712"
        );
    }

    #[test]
    fn oldest_of_several_holders_is_named() {
        let lapsed = InspectedHolder {
            lapsed_for: Some(Duration::from_secs(1)),
            ..holder(1, "dead")
        };
        let holders = vec![
            lapsed.clone(),
            holder(3_000_000, "b"),
            holder(2_000_000, "a"),
        ];
        assert_eq!(
            text(holders, Some(3_000_000)),
            "held for 1.0s by process 4711 on web-1, thread main#4712, label \"a\", and by 2 more"
        );
        assert!(text(vec![lapsed], None).ends_with("ended 1.0s ago, without a release"));
    }

    #[test]
    fn name_without_a_holder_says_so() {
        assert_eq!(text(Vec::new(), None), "nobody holds it");
        assert_eq!(
            holder_text(&Outcome::Absent, Family::Mutex, None),
            "nobody holds it"
        );
        let cools = InspectedHolder {
            cools: true,
            ..holder(1, "")
        };
        assert!(text(vec![cools], None).starts_with("it cools for 9.0s, after process 4711"));
    }
}
