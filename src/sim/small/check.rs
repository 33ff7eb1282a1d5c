//! What must hold of each step of a script, by the record before and after it.

use super::client::Stage;
use super::shelf::{Ask, Done, STEP, Said, Shelf, Tok};
use super::world::World;

/// P2, P3, P4 and P7 as far as one step of the server shows them. The error says what was broken.
pub(super) fn script(before: &Shelf, ask: Ask, done: &Done) -> Result<(), String> {
    let after = &done.shelf;
    let caller = ask.tok();
    if done.answer.said == Said::Late {
        return if before == after { Ok(()) } else { Err("a request that came too late took something".to_owned()) };
    }
    let granted = after.owner.filter(|owner| before.owner != Some(*owner));
    if granted.is_some() && after.fence <= before.fence {
        return Err(format!("P2: {granted:?} was granted fence {} after {}", after.fence, before.fence));
    }
    if granted.is_none() && after.fence != before.fence {
        return Err("P7: the fence changed without a grant".to_owned());
    }
    // Who owned it, has it still or is the caller; or his time was over.
    if let Some(owner) = before.owner
        && after.owner != Some(owner)
        && owner != caller
        && before.left > 0
    {
        return Err(format!("P1: the lease of {owner:?} was ended by {ask:?}"));
    }
    let lapsed = before.owner.filter(|owner| before.left == 0 && *owner != caller && after.owner != Some(*owner));
    let alive = |tok: Tok| {
        let asks = tok.client == caller.client && matches!(ask, Ask::Acquire(_) | Ask::Sync(_));
        let void = lapsed.is_some_and(|owner| owner.client == tok.client && owner.client != caller.client);
        let passed = before.idle.min(STEP) as i8;
        let stamped = before.stamps.iter().any(|s| s.client == tok.client && s.ahead >= passed);
        (asks || stamped) && !void
    };
    let waits = |tok: &&Tok| before.is_waiting(**tok);
    let leaves = |tok: Tok| tok == caller && matches!(ask, Ask::Release(..));
    // P3: the first who is alive is next.
    if let Some(owner) = granted {
        let next = before.queue.iter().filter(waits).find(|tok| alive(**tok) && !leaves(**tok));
        if next.is_some_and(|next| *next != owner) || (next.is_none() && owner != caller) {
            return Err(format!("P3: {owner:?} was granted, and {next:?} was next"));
        }
    }
    for tok in before.queue.iter().filter(waits) {
        if !after.is_waiting(*tok) && granted != Some(*tok) && alive(*tok) && !leaves(*tok) {
            return Err(format!("P3: {tok:?} lost its place"));
        }
    }
    // Nobody changes places, and who comes stands at the end. A token that was given up can come once more, by a copy of
    // its acquire that was under way; if its dead entry is still there, it stands where that is, until it is given up
    // again (R7).
    let comes = matches!(ask, Ask::Acquire(_)) && !before.is_waiting(caller);
    let stood = line(before, |tok| after.is_waiting(tok));
    let stand = line(after, |tok| !comes || tok != caller);
    if stood != stand {
        return Err(format!("P3: {stood:?} became {stand:?}"));
    }
    if comes && after.is_waiting(caller) && !before.queue.contains(&caller) && after.queue.last() != Some(&caller) {
        return Err(format!("P3: {caller:?} came last and stands in {:?}", after.queue));
    }
    // P4: a free lock has nobody waiting. A renewal hands nothing over.
    if after.owner.is_none() && !matches!(ask, Ask::Renew(_)) && !after.waiters.is_empty() {
        return Err(format!("P4: the lock is free, and {:?} wait", after.waiters));
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

/// Those who wait, in their order.
fn line(shelf: &Shelf, counts: impl Fn(Tok) -> bool) -> Vec<Tok> {
    let mut line = Vec::new();
    for tok in &shelf.queue {
        if shelf.is_waiting(*tok) && counts(*tok) && !line.contains(tok) {
            line.push(*tok);
        }
    }
    line
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
