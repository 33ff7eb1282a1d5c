//! What must hold of each step of a script, by the record before and after it.

use super::client::Stage;
use super::shelf::{Ask, CLIENTS, Done, STEP, Said, Shelf, TTL, Tok, Way};
use super::world::World;
use crate::sim::model::{Found, Lock};
use crate::sim::op::{Attempt, Kind, Lease, Moment, Op, Outcome, Sight};

/// What the model says of one step of the server, and what it has no word for: time, and who hears of it. The error
/// says what was broken.
pub(super) fn script(before: &Shelf, ask: Ask, late: bool, done: &Done) -> Result<(), String> {
    let after = &done.shelf;
    let caller = ask.tok();
    let said = &done.answer.said;
    if late && matches!(ask, Ask::Acquire(_)) && *said != Said::Late {
        return Err(format!("P7: {ask:?} came too late and was answered {said:?}"));
    }
    let holders = before.owner.map(|owner| Found {
        by: attempt(owner),
        permits: 1,
        fence: before.fence.into(),
        spared: before.graced,
    });
    let model = Lock::found(Kind::Mutex, holders.into_iter().collect(), standing(before), before.fence.into());
    let number = |owner: Option<Tok>| owner.map(|owner| attempt(owner).number);
    let is_spared = before.owner == after.owner && after.graced && !before.graced;
    let moment = Moment {
        over: number(before.owner.filter(|_| before.left == 0)).into_iter().collect(),
        silent: silent(before),
        outage: before.idle > STEP,
        grace: number(before.owner.filter(|_| is_spared)).into_iter().collect(),
        ..Moment::default()
    };
    let sight = Sight {
        holders: number(after.owner).map(|number| (number, after.fence.into())).into_iter().collect(),
        queue: standing(after).iter().map(|attempt| attempt.number).collect(),
    };
    let (op, outcome) = told(before, ask, said);
    if let Err(promise) = model.request(moment, op, &outcome, sight) {
        return Err(format!("{promise}: {ask:?} was answered {said:?}, and {before:?} became {after:?}"));
    }
    let granted = after.owner.filter(|owner| before.owner != Some(*owner));
    if granted.is_none() && after.fence != before.fence {
        return Err("P7: the fence changed without a grant".to_owned());
    }
    let has_full_time = granted.is_some() || (matches!(ask, Ask::Renew(_)) && before.owner == Some(caller));
    if has_full_time && after.left < TTL {
        return Err(format!("P6: {:?} has {} ticks of {TTL}", after.owner, after.left));
    }
    if *said != Said::Late {
        served_time(before, ask, after)?;
    }
    let heard = |tok: Tok| {
        let answer = &done.answer;
        let own = tok == caller || answer.grants.iter().any(|news| news.to == tok);
        own || matches!(&answer.said, Said::Synced { owner: Some(news), .. } if news.to == tok)
            || done.news.iter().any(|news| news.to == tok)
    };
    match granted {
        Some(tok) if !heard(tok) => Err(format!("P4: {tok:?} was granted, and nobody tells")),
        _ => Ok(()),
    }
}

/// The request and its answer in the words of the model.
fn told(before: &Shelf, ask: Ask, said: &Said) -> (Op, Outcome) {
    let own = attempt(ask.tok());
    let op = match ask {
        // A token that was given up can come once more, by a copy of its acquire that was under way (R7).
        Ask::Acquire(tok) if before.queue.contains(&tok) && !before.is_waiting(tok) => Op::Return(own),
        Ask::Acquire(_) => Op::Enqueue(own),
        Ask::Release(_, _, Way::Used) => Op::Unlock(own),
        Ask::Release(_, _, Way::Lost) => Op::Drop(own),
        Ask::Release(_, _, Way::Unused | Way::KeepIfOwner) => Op::Leave(own),
        Ask::Renew(_) => Op::Renew(own),
        Ask::Sync(tok) => Op::Sync { client: tok.client },
    };
    let outcome = match said {
        Said::Granted(news) => Outcome::Granted { fence: news.fence.into() },
        Said::Waiting { .. } => Outcome::Waiting { position: None },
        Said::Late => Outcome::Late,
        Said::Released => Outcome::Released,
        Said::Already | Said::NotOwner | Said::Gone => Outcome::Lost,
        Said::Renewed { .. } => Outcome::Renewed,
        Said::Synced { .. } => Outcome::Done,
        Said::Absent => Outcome::Absent,
    };
    (op, outcome)
}

fn attempt(tok: Tok) -> Attempt {
    let number = u16::from(tok.client) << 8 | u16::from(tok.number);
    Attempt { number, client: tok.client, lease: Lease::Renewed, permits: 1 }
}

/// Those who wait, in their order. Where one stands twice, it stands at the first.
fn standing(shelf: &Shelf) -> Vec<Attempt> {
    let mut line = Vec::new();
    for tok in shelf.queue.iter().filter(|tok| shelf.is_waiting(**tok)) {
        let attempt = attempt(*tok);
        if !line.contains(&attempt) {
            line.push(attempt);
        }
    }
    line
}

/// R2: those who have no sign of life, or none within the horizon of served time.
fn silent(shelf: &Shelf) -> u128 {
    let passed = shelf.idle.min(STEP) as i8;
    let is_heard = |client: u8| shelf.stamps.iter().any(|stamp| stamp.client == client && stamp.ahead >= passed);
    (0..CLIENTS).filter(|client| !is_heard(*client)).fold(0, |mask, client| mask | 1 << client)
}

/// R2: served time grows by what went by since a script last looked, and by no more than a step.
fn served_time(before: &Shelf, ask: Ask, after: &Shelf) -> Result<(), String> {
    let passed = if after.idle == 0 { before.idle.min(STEP) as i8 } else { 0 };
    for stamp in before.stamps.iter().filter(|stamp| stamp.client != ask.tok().client) {
        let later = after.stamps.iter().find(|later| later.client == stamp.client);
        if later.is_some_and(|later| later.ahead != (stamp.ahead - passed).max(-1)) {
            return Err(format!("R2: {passed} ticks of {stamp:?} were served, and it became {later:?}"));
        }
    }
    Ok(())
}

/// P1 as clients see it: whoever believes that he holds it is the owner, with his fence, and for no longer than that.
pub(super) fn world(world: &World) -> Result<(), String> {
    let shelf = &world.shelf;
    for client in world.clients.iter().filter(|client| client.stage == Stage::Holding) {
        if shelf.owner != client.tok || shelf.fence != client.fence || shelf.left < client.left {
            return Err(format!("P1: {:?} believes that it holds, and the owner is {:?}", client.tok, shelf.owner));
        }
    }
    Ok(())
}
