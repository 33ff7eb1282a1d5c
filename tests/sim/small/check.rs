//! What must hold of each step of a script, by the record before and after it.

use super::client::Stage;
use super::setting::Setting;
use super::shelf::{Ask, CLIENTS, Done, Holder, News, STEP, Said, Shelf, Stands, TTL, Tok, Way};
use super::world::World;
use crate::loss::PreviousHolder;
use crate::script::Family;
use crate::sim::model::Promise;
use crate::sim::model::{Attempt, LeaseTerm, ModelOutcome, Observation, Op, ServerView};
use crate::sim::model::{FoundHolder, ModelLock};

/// What the model says of one step of the server, and what it has no word for: time, who hears of it, and what is kept
/// so that others need not look. The error says what was broken.
pub(super) fn script(
    setting: &Setting,
    before: &Shelf,
    ask: Ask,
    late: bool,
    done: &Done,
) -> Result<(), String> {
    let after = &done.shelf;
    let said = &done.answer.said;
    if late && matches!(ask, Ask::Acquire(_)) && *said != Said::Late {
        return Err(format!(
            "P7: {ask:?} came too late and was answered {said:?}"
        ));
    }
    if let Ask::Lookup(tok) = ask {
        return lookup(before, tok, done);
    }
    let attempt = |tok| attempt(setting, tok);
    let found = |held: &Holder| FoundHolder {
        attempt: attempt(held.tok),
        permits: held.permits,
        fence: held.fence.into(),
        spared: held.stands == Stands::Spared,
    };
    let holders = before.holding().map(found).collect();
    let model = ModelLock::from_record(
        setting.kind,
        holders,
        standing(setting, before),
        before.fence.into(),
    );
    let is_spared = |held: &&Holder| {
        let was = before.holder(held.tok);
        held.stands == Stands::Spared && was.is_some_and(|was| was.stands == Stands::Holds)
    };
    let moment = ServerView {
        expired: before
            .holding()
            .filter(|held| held.left == 0)
            .map(|held| attempt(held.tok).number)
            .collect(),
        silent: silent(before),
        outage: before.idle > STEP,
        grace: after
            .holding()
            .filter(is_spared)
            .map(|held| attempt(held.tok).number)
            .collect(),
        ..ServerView::default()
    };
    let sight = Observation {
        holders: after
            .holding()
            .map(|held| (attempt(held.tok).number, held.fence.into()))
            .collect(),
        queue: standing(setting, after)
            .iter()
            .map(|attempt| attempt.number)
            .collect(),
    };
    let (op, outcome) = told(setting, before, ask, said);
    let caller = ask.tok();
    let has_passed = matches!(ask, Ask::Acquire(_))
        && before.holder(caller).is_none()
        && after.holder(caller).is_some()
        && after.holding().map(|held| held.permits).sum::<u32>() <= setting.kind.permits();
    let is_asked = |promise| {
        // There was enough, and others were before him.
        let promise = if has_passed && promise == Promise::Exclusion {
            Promise::Order
        } else {
            promise
        };
        format!("{promise}: {ask:?} was answered {said:?}, and {before:?} became {after:?}")
    };
    let model = model
        .request(moment, op, &outcome, &sight)
        .map_err(is_asked)?;
    if !model.holders.iter().all(|held| {
        after
            .holding()
            .map(found)
            .any(|f| f.attempt == held.attempt && f.permits == held.permits)
    }) {
        return Err(format!(
            "P1: {:?} has other permits than {:?}",
            after.holders, model.holders
        ));
    }
    let granted: Vec<&Holder> = after
        .holding()
        .filter(|held| before.holder(held.tok).is_none())
        .collect();
    if granted.is_empty() && after.fence != before.fence {
        return Err("P7: the fence changed without a grant".to_owned());
    }
    let renewed = matches!(ask, Ask::Renew(_))
        .then(|| after.holder(caller))
        .flatten();
    if let Some(held) = granted
        .iter()
        .copied()
        .chain(renewed)
        .find(|held| held.left < TTL)
    {
        return Err(format!(
            "P6: {:?} has {} ticks of {TTL}",
            held.tok, held.left
        ));
    }
    if *said != Said::Late {
        served_time(before, ask, after)?;
    }
    let heard: Vec<&News> = heard(done).collect();
    let is_true = |news: &News| {
        after
            .holder(news.to)
            .is_some_and(|h| (h.fence, h.left) == (news.fence, news.left))
    };
    if let Some(news) = heard.iter().find(|news| !is_true(news)) {
        return Err(format!("P7: {news:?} is told, and {after:?}"));
    }
    if let Some(held) = granted
        .iter()
        .find(|held| !heard.iter().any(|news| news.to == held.tok))
    {
        return Err(format!("P4: {:?} was granted, and nobody tells", held.tok));
    }
    previous_holder(setting, before, ask, done)?;
    if setting.family() == Family::Permit {
        permits(before, ask, done)
    } else {
        Ok(())
    }
}

/// Who is granted it is told how the last holder ended that left what may be half done: a guard's release or its loss, or
/// a lapse. Readers leave nothing.
fn previous_holder(setting: &Setting, before: &Shelf, ask: Ask, done: &Done) -> Result<(), String> {
    let after = &done.shelf;
    let is_lapsed = |held: &Holder| Some(held.tok) != ask.own() && after.holder(held.tok).is_none();
    let lapsed = before
        .holding()
        .any(|held| is_lapsed(held) && setting.kind.raises_fence(held.permits));
    let released = |held: &&Holder| {
        setting.kind.raises_fence(held.permits) && done.answer.said == Said::Released
    };
    let ended = match ask {
        Ask::Release(tok, _, way) if before.holder(tok).filter(released).is_some() => match way {
            Way::Used | Way::Downgrade => Some(PreviousHolder::Released),
            Way::Lost => Some(PreviousHolder::Lapsed),
            Way::Unused | Way::KeepIfOwner => None,
        },
        _ => None,
    };
    let ended = ended
        .or(lapsed.then_some(PreviousHolder::Lapsed))
        .unwrap_or(PreviousHolder::Unknown);
    if done.ended != ended {
        return Err(format!(
            "P6: {ask:?} of {before:?}: the last holder ended as {ended:?}, not as {:?}",
            done.ended
        ));
    }
    let granted = |tok: Tok| before.holder(tok).is_none() && after.holder(tok).is_some();
    match done
        .previous
        .iter()
        .find(|(tok, told)| granted(*tok) && *told != ended)
    {
        Some((tok, told)) => Err(format!(
            "P6: {tok:?} is told that the last holder ended as {told:?}, not as {ended:?}"
        )),
        None => Ok(()),
    }
}

/// The grants that are told of, to whomever.
fn heard(done: &Done) -> impl Iterator<Item = &News> {
    let own = match &done.answer.said {
        Said::Granted(news)
        | Said::Synced {
            owner: Some(news), ..
        } => Some(news),
        _ => None,
    };
    own.into_iter().chain(&done.answer.grants).chain(&done.news)
}

/// It changes nothing, and says what there is.
fn lookup(shelf: &Shelf, tok: Tok, done: &Done) -> Result<(), String> {
    let held = shelf.holder(tok);
    let known = match done.answer.said {
        Said::Present { waits, owns, .. } => waits || owns,
        _ => false,
    };
    let is_known = held.is_some() || shelf.is_waiting(tok);
    let news = held.map(|held| News {
        to: tok,
        fence: held.fence,
        left: held.left,
    });
    let is_told = done.answer.grants.iter().all(|told| Some(*told) == news);
    if done.shelf == *shelf && done.news.is_empty() && known == is_known && is_told {
        return Ok(());
    }
    Err(format!(
        "P4: {tok:?} is looked up in {shelf:?}, and {done:?} comes of it"
    ))
}

/// What permits keep so that others need not look at all holders, and for those who had some.
fn permits(before: &Shelf, ask: Ask, done: &Done) -> Result<(), String> {
    let after = &done.shelf;
    if let Some(held) = after.holding().find(|held| held.fence > after.fence) {
        return Err(format!("P2: {held:?} has a larger fence than the record"));
    }
    if let Some(held) = after
        .holding()
        .find(|held| after.look.is_none_or(|look| held.left < look))
    {
        return Err(format!(
            "P5: {:?} lapses in {} ticks, and is looked at in {:?}",
            held.tok, held.left, after.look
        ));
    }
    let lapsed = |shelf: &Shelf, tok| {
        shelf
            .holders
            .iter()
            .copied()
            .find(|h| h.tok == tok && h.stands == Stands::Lapsed)
    };
    let gone = before.holding().find(|held| {
        let is_lapsed = Some(held.tok) != ask.own() && after.holder(held.tok).is_none();
        is_lapsed && lapsed(after, held.tok).is_none_or(|lapsed| lapsed.left < TTL)
    });
    if let Some(held) = gone {
        return Err(format!(
            "P6: {held:?} lapsed, and cannot hear of it: {after:?}"
        ));
    }
    let is_told = match (ask, &done.answer.said) {
        (Ask::Release(tok, ..), Said::Already | Said::NotOwner) => {
            // Without a record it was lost.
            (done.answer.said == Said::NotOwner)
                == (lapsed(before, tok).is_some() || before.fence == 0)
        }
        _ => true,
    };
    if is_told {
        Ok(())
    } else {
        Err(format!(
            "P6: {ask:?} was answered {:?} of {before:?}",
            done.answer.said
        ))
    }
}

/// The request and its answer in the words of the model.
fn told(setting: &Setting, before: &Shelf, ask: Ask, said: &Said) -> (Op, ModelOutcome) {
    let own = attempt(setting, ask.tok());
    let op = match ask {
        // A token that was given up can come once more, by a copy of its acquire that was under way (R7).
        Ask::Acquire(tok) if before.queue.contains(&tok) && !before.is_waiting(tok) => {
            Op::Rejoin(own)
        }
        Ask::Acquire(_) => Op::Enqueue(own),
        Ask::Release(_, _, Way::Used) => Op::Unlock(own),
        Ask::Release(_, _, Way::Lost) => Op::Drop(own),
        Ask::Release(_, _, Way::Unused | Way::KeepIfOwner) => Op::Cancel(own),
        Ask::Release(_, _, Way::Downgrade) => Op::Downgrade(own),
        Ask::Renew(_) => Op::Renew(own),
        Ask::Sync(tok) => Op::Sync { client: tok.client },
        Ask::Lookup(_) => unreachable!("it is no request of the model's"),
    };
    let outcome = match said {
        Said::Granted(news) => ModelOutcome::Granted {
            fence: news.fence.into(),
        },
        Said::Waiting { .. } => ModelOutcome::Waiting { position: None },
        Said::Late => ModelOutcome::Late,
        Said::Released if matches!(op, Op::Downgrade(_)) => ModelOutcome::Downgraded,
        Said::Released => ModelOutcome::Released,
        Said::Already | Said::NotOwner | Said::Gone => ModelOutcome::Lost,
        Said::Renewed { .. } => ModelOutcome::Renewed,
        Said::Synced { .. } | Said::Present { .. } => ModelOutcome::Done,
        Said::Absent => ModelOutcome::Absent,
    };
    (op, outcome)
}

fn attempt(setting: &Setting, tok: Tok) -> Attempt {
    let number = u16::from(tok.client) << 8 | u16::from(tok.number);
    Attempt {
        number,
        client: tok.client,
        lease: LeaseTerm::Renewed,
        permits: setting.permits(tok.client),
    }
}

/// Those who wait, in their order. Where one stands twice, it stands at the first.
fn standing(setting: &Setting, shelf: &Shelf) -> Vec<Attempt> {
    let mut line = Vec::new();
    for tok in shelf.queue.iter().filter(|tok| shelf.is_waiting(**tok)) {
        let attempt = attempt(setting, *tok);
        if !line.contains(&attempt) {
            line.push(attempt);
        }
    }
    line
}

/// R2: those who have no sign of life, or none within the horizon of served time.
fn silent(shelf: &Shelf) -> u128 {
    let passed = shelf.idle.min(STEP) as i8;
    let is_heard = |client: u8| {
        shelf
            .stamps
            .iter()
            .any(|stamp| stamp.client == client && stamp.ahead >= passed)
    };
    (0..CLIENTS)
        .filter(|client| !is_heard(*client))
        .fold(0, |mask, client| mask | 1 << client)
}

/// R2: served time grows by what went by since a script last looked, and by no more than a step.
fn served_time(before: &Shelf, ask: Ask, after: &Shelf) -> Result<(), String> {
    let passed = if after.idle == 0 {
        before.idle.min(STEP) as i8
    } else {
        0
    };
    for stamp in before
        .stamps
        .iter()
        .filter(|stamp| stamp.client != ask.tok().client)
    {
        let later = after
            .stamps
            .iter()
            .find(|later| later.client == stamp.client);
        if later.is_some_and(|later| later.ahead != (stamp.ahead - passed).max(-1)) {
            return Err(format!(
                "R2: {passed} ticks of {stamp:?} were served, and it became {later:?}"
            ));
        }
    }
    Ok(())
}

/// P1 as clients see it: whoever believes that he holds it does, with his fence and permits, and for no longer than that;
/// and all that they believe to have is no more than there is.
pub(super) fn world(world: &World) -> Result<(), String> {
    let mut believed = 0;
    for (c, client) in (0..CLIENTS)
        .zip(&world.clients)
        .filter(|(_, client)| client.stage == Stage::Holding)
    {
        let permits = if client.downgraded {
            1
        } else {
            world.setting.permits(c)
        };
        let held = client.tok.and_then(|tok| world.shelf.holder(tok));
        if held
            .is_none_or(|h| h.fence != client.fence || h.left < client.left || h.permits < permits)
        {
            return Err(format!(
                "P1: {:?} believes that it holds, and there is {:?}",
                client.tok, world.shelf.holders
            ));
        }
        believed += permits;
    }
    if believed > world.setting.kind.permits() {
        return Err(format!("P1: {believed} permits are believed to be held"));
    }
    Ok(())
}
