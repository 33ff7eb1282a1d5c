//! The checks of each run of a script, by the record before and after it, and of each world.

use super::record_state::{
    Arrival, CLIENTS, Execution, HolderState, HolderStatus, RecordState, ReleaseMode, STEP,
    SmallGrant, SmallReply, SmallRequest, SmallToken, SmallWanted, TTL, Told,
};
use super::setting::SmallSetting;
use crate::loss::PreviousHolder;
use crate::script::Family;
use crate::sim::model::{
    Attempt, FoundHolder, LeaseTerm, ModelLock, ModelOutcome, Observation, Op, Promise, ServerView,
};

/// Checks one run of a script: what the model says of it, and what the model does not know. That is
/// time, the reports of grants, and what is kept so that other requests need not look. The error
/// says what is broken.
pub(super) fn script(
    setting: &SmallSetting,
    before: &RecordState,
    request: SmallRequest,
    arrival: Arrival,
    execution: &Execution,
) -> Result<(), String> {
    let reply = &execution.answer.reply;
    let is_dated = matches!(
        request,
        SmallRequest::Acquire(_) | SmallRequest::Renew(_) | SmallRequest::Force(..)
    );
    let is_gone = matches!(request, SmallRequest::Renew(_)) && *reply == SmallReply::Gone;
    if arrival == Arrival::Late && is_dated && !is_gone && *reply != SmallReply::Late {
        return Err(format!(
            "P7: {request:?} came too late and was answered {reply:?}"
        ));
    }
    if let SmallRequest::Lookup(token) = request {
        return lookup(before, token, execution);
    }
    compare_with_model(setting, before, request, execution)?;
    leases_are_full(before, request, execution)?;
    if *reply != SmallReply::Late {
        served_time(before, request, &execution.record)?;
    }
    grants_are_reported(before, execution)?;
    if setting.keepers > 0 {
        owner_is_told(before, request, execution)?;
    }
    previous_holder(setting, before, request, execution)?;
    if setting.family() == Family::Permit {
        permits(before, request, execution)
    } else {
        Ok(())
    }
}

/// Makes a [`ModelLock`] of the record before, and asks it whether the script may leave this
/// record.
fn compare_with_model(
    setting: &SmallSetting,
    before: &RecordState,
    request: SmallRequest,
    execution: &Execution,
) -> Result<(), String> {
    let after = &execution.record;
    let reply = &execution.answer.reply;
    let attempt = |token| attempt(setting, token);
    let found = |holder: &HolderState| FoundHolder {
        attempt: attempt(holder.token),
        permits: holder.permits,
        fence: holder.fence.into(),
        spared: holder.status == HolderStatus::Spared,
    };
    let model = ModelLock::from_record(
        setting.kind,
        before.holding().map(found).collect(),
        queued(setting, before),
        before.fence.into(),
    );
    let model = if before.miscounted > 0 {
        let lost = before.waiters.iter().map(|(token, _)| *token);
        let lost = lost.filter(|token| !before.queue.contains(token));
        model.with_lost_queue(lost.map(attempt).collect())
    } else {
        model
    };
    let observation = Observation {
        holders: after
            .holding()
            .map(|holder| (attempt(holder.token).number, holder.fence.into()))
            .collect(),
        queue: queued(setting, after)
            .iter()
            .map(|attempt| attempt.number)
            .collect(),
        last_fence: (setting.family() == Family::Mutex).then_some(after.fence.into()),
    };
    let (op, outcome) = in_words_of_the_model(setting, before, request, reply);
    let caller = request.token();
    let has_enough_permits =
        after.holding().map(|holder| holder.permits).sum::<u32>() <= setting.kind.permits();
    let has_overtaken = matches!(request, SmallRequest::Acquire(_))
        && before.holder(caller).is_none()
        && after.holder(caller).is_some()
        && has_enough_permits;
    let describe = |promise| {
        // There were enough permits, so the grant is wrong only because others waited before.
        let promise = if has_overtaken && promise == Promise::Exclusion {
            Promise::Order
        } else {
            promise
        };
        format!("{promise}: {request:?} was answered {reply:?}, and {before:?} became {after:?}")
    };
    let view = server_view(setting, before, after);
    let model = model
        .request(view, op, &outcome, &observation)
        .map_err(describe)?;
    let permits_agree = model.holders.iter().all(|grant| {
        after
            .holding()
            .map(found)
            .any(|holder| holder.attempt == grant.attempt && holder.permits == grant.permits)
    });
    if !permits_agree {
        return Err(format!(
            "P1: {:?} has other permits than {:?}",
            after.holders, model.holders
        ));
    }
    Ok(())
}

/// The decisions of the server's clock, as the records before and after a request show it.
fn server_view(setting: &SmallSetting, before: &RecordState, after: &RecordState) -> ServerView {
    let number = |holder: &HolderState| attempt(setting, holder.token).number;
    let is_spared_now = |holder: &&HolderState| {
        let earlier = before.holder(holder.token);
        holder.status == HolderStatus::Spared
            && earlier.is_some_and(|earlier| earlier.status == HolderStatus::Holds)
    };
    ServerView {
        expired: before
            .holding()
            .filter(|holder| holder.left == 0)
            .map(number)
            .collect(),
        silent: silent(before),
        outage: before.since_served > STEP,
        grace: after.holding().filter(is_spared_now).map(number).collect(),
        ..ServerView::default()
    }
}

/// P6: a lease has its full time after a grant and after a renewal. P7: only a grant raises the
/// fence, and the end of a grant that has reserved more than one.
fn leases_are_full(
    before: &RecordState,
    request: SmallRequest,
    execution: &Execution,
) -> Result<(), String> {
    let after = &execution.record;
    let granted = new_holders(before, after);
    // The model says what the end of a grant with a spare makes of it.
    let has_turns = before
        .holding()
        .any(|holder| holder.spare > 0 || holder.hears);
    if granted.is_empty() && after.fence != before.fence && !has_turns {
        return Err("P7: the fence changed without a grant".to_owned());
    }
    let is_renewed = matches!(execution.answer.reply, SmallReply::Renewed { .. });
    let renewed = is_renewed.then(|| after.holder(request.token())).flatten();
    match granted
        .into_iter()
        .chain(renewed)
        .find(|holder| holder.left < TTL)
    {
        Some(holder) => Err(format!(
            "P6: {:?} has {} ticks of {TTL}",
            holder.token, holder.left
        )),
        None => Ok(()),
    }
}

/// P4: every grant is reported. P7: every report is true.
fn grants_are_reported(before: &RecordState, execution: &Execution) -> Result<(), String> {
    let after = &execution.record;
    let reports: Vec<&SmallGrant> = reported_grants(execution).collect();
    let is_true = |report: &SmallGrant| {
        after
            .holder(report.to)
            .is_some_and(|holder| (holder.fence, holder.left) == (report.fence, report.left))
    };
    if let Some(report) = reports.iter().find(|report| !is_true(report)) {
        return Err(format!(
            "P7: {report:?} is reported, but the record is {after:?}"
        ));
    }
    match new_holders(before, after)
        .into_iter()
        .find(|holder| !reports.iter().any(|report| report.to == holder.token))
    {
        Some(holder) => Err(format!(
            "P4: {:?} was granted, and nothing reports it",
            holder.token
        )),
        None => Ok(()),
    }
}

/// P3: an owner that hears is told that somebody waits, and nobody else. It is told once in a tick,
/// and with its grant if others wait by then.
fn owner_is_told(
    before: &RecordState,
    request: SmallRequest,
    execution: &Execution,
) -> Result<(), String> {
    let after = &execution.record;
    let owner = after.holding().find(|holder| holder.hears);
    let is_true = |told: &SmallWanted| {
        owner.is_some_and(|owner| {
            (owner.token.client, owner.fence) == (told.client, told.fence)
                && Some(owner.token) != request.own()
        })
    };
    if let Some(told) = execution.wanted.iter().find(|told| !is_true(told)) {
        return Err(format!("P3: {told:?} is told, and the record is {after:?}"));
    }
    let Some(owner) = owner else {
        return Ok(());
    };
    let was_told = before.told == Told::Last && before.holder(owner.token).is_some();
    if execution.wanted.len() > usize::from(!was_told) {
        return Err(format!(
            "P3: {owner:?} is told again: {:?}",
            execution.wanted
        ));
    }
    let are_others_waiting = after.queue.iter().any(|token| after.is_waiting(*token));
    let has_come = matches!(request, SmallRequest::Acquire(_))
        && matches!(execution.answer.reply, SmallReply::Waiting { .. });
    let knows = |report: &&SmallGrant| report.to == owner.token && report.waits;
    let is_told = was_told
        || !execution.wanted.is_empty()
        || reported_grants(execution).any(|report| knows(&report));
    let is_new = before.holder(owner.token).is_none();
    if are_others_waiting && (has_come || is_new) && !is_told {
        return Err(format!(
            "P3: nobody tells {owner:?} that others wait in {after:?}"
        ));
    }
    Ok(())
}

fn new_holders<'a>(before: &RecordState, after: &'a RecordState) -> Vec<&'a HolderState> {
    after
        .holding()
        .filter(|holder| before.holder(holder.token).is_none())
        .collect()
}

/// P6: a new holder learns how the last holder ended that can have left work half done. Such a
/// holder was a guard that was released or lost, or a lease that lapsed. Readers leave nothing half
/// done.
fn previous_holder(
    setting: &SmallSetting,
    before: &RecordState,
    request: SmallRequest,
    execution: &Execution,
) -> Result<(), String> {
    let after = &execution.record;
    let has_lapsed = |holder: &HolderState| {
        Some(holder.token) != request.own() && after.holder(holder.token).is_none()
    };
    let lapsed = before
        .holding()
        .any(|holder| has_lapsed(holder) && setting.kind.raises_fence(holder.permits));
    let was_released = |holder: &&HolderState| {
        setting.kind.raises_fence(holder.permits) && execution.answer.reply == SmallReply::Released
    };
    let released = match request {
        SmallRequest::Force(..) if execution.answer.reply == SmallReply::Released => {
            Some(PreviousHolder::Forced)
        }
        SmallRequest::Release(token, _, mode)
            if before.holder(token).filter(was_released).is_some() =>
        {
            match mode {
                ReleaseMode::Used(_) | ReleaseMode::Downgrade => Some(PreviousHolder::Released),
                ReleaseMode::Lost(_) => Some(PreviousHolder::Lapsed),
                ReleaseMode::Unused | ReleaseMode::KeepIfOwner => None,
            }
        }
        // A guard lost a lease of which no record is left.
        SmallRequest::Release(_, _, ReleaseMode::Lost(_))
            if is_stray(before, request) && execution.answer.reply == SmallReply::Already =>
        {
            Some(PreviousHolder::Lapsed)
        }
        _ => None,
    };
    let expected = released
        .or(lapsed.then_some(PreviousHolder::Lapsed))
        .unwrap_or(PreviousHolder::Unknown);
    if execution.last_ended != expected {
        return Err(format!(
            "P6: {request:?} of {before:?}: the last holder ended as {expected:?}, not as {:?}",
            execution.last_ended
        ));
    }
    let is_new =
        |token: SmallToken| before.holder(token).is_none() && after.holder(token).is_some();
    match execution
        .reported
        .iter()
        .find(|(token, reported)| is_new(*token) && *reported != expected)
    {
        Some((token, reported)) => Err(format!(
            "P6: the report to {token:?} says that the last holder ended as {reported:?}, not as {expected:?}"
        )),
        None => Ok(()),
    }
}

/// All reports of grants: in the reply, in the rest of the answer, and in messages.
fn reported_grants(execution: &Execution) -> impl Iterator<Item = &SmallGrant> {
    let own = match &execution.answer.reply {
        SmallReply::Granted(grant)
        | SmallReply::Synced {
            owner: Some(grant), ..
        } => Some(grant),
        _ => None,
    };
    own.into_iter()
        .chain(&execution.answer.grants)
        .chain(&execution.published)
}

/// A lookup changes nothing and reports what is there.
fn lookup(record: &RecordState, token: SmallToken, execution: &Execution) -> Result<(), String> {
    let holder = record.holder(token);
    let is_found = match execution.answer.reply {
        SmallReply::Present { waits, owns, .. } => waits || owns,
        _ => false,
    };
    let is_there = holder.is_some() || record.is_waiting(token);
    let grant = holder.map(|holder| SmallGrant {
        to: token,
        fence: holder.fence,
        left: holder.left,
        waits: false,
    });
    let reports_are_true = execution
        .answer
        .grants
        .iter()
        .all(|report| Some(*report) == grant);
    if execution.record == *record
        && execution.published.is_empty()
        && is_found == is_there
        && reports_are_true
    {
        return Ok(());
    }
    Err(format!(
        "P4: a lookup of {token:?} in {record:?} ended in {execution:?}"
    ))
}

/// For permits: what the record keeps so that no request needs to look at all holders, and what it
/// keeps for former holders.
fn permits(
    before: &RecordState,
    request: SmallRequest,
    execution: &Execution,
) -> Result<(), String> {
    let after = &execution.record;
    let reply = &execution.answer.reply;
    if let Some(holder) = after.holding().find(|holder| holder.fence > after.fence) {
        return Err(format!("P2: {holder:?} has a larger fence than the record"));
    }
    let lapses_unseen =
        |holder: &&HolderState| after.next_lapse.is_none_or(|next| holder.left < next);
    if let Some(holder) = after.holding().find(lapses_unseen) {
        return Err(format!(
            "P5: {:?} lapses in {} ticks, and scripts look for lapses in {:?}",
            holder.token, holder.left, after.next_lapse
        ));
    }
    let lapsed = |record: &RecordState, token| {
        record
            .holders
            .iter()
            .copied()
            .find(|holder| holder.token == token && holder.status == HolderStatus::Lapsed)
    };
    let forgotten = before.holding().find(|holder| {
        let has_lapsed =
            Some(holder.token) != request.own() && after.holder(holder.token).is_none();
        has_lapsed && lapsed(after, holder.token).is_none_or(|lapsed| lapsed.left < TTL)
    });
    if let Some(holder) = forgotten {
        return Err(format!(
            "P6: {holder:?} lapsed, and cannot learn of it: {after:?}"
        ));
    }
    let is_reply_true = match (request, reply) {
        (SmallRequest::Release(token, ..), SmallReply::Already | SmallReply::NotOwner) => {
            // Without a record, the permits were lost. A stray lease says so of the caller's own.
            (*reply == SmallReply::NotOwner)
                == (lapsed(before, token).is_some()
                    || before.fence == 0
                    || is_stray(before, request))
        }
        _ => true,
    };
    if is_reply_true {
        Ok(())
    } else {
        Err(format!(
            "P6: {request:?} of {before:?} was answered {reply:?}"
        ))
    }
}

/// The request and its reply as the model names them.
fn in_words_of_the_model(
    setting: &SmallSetting,
    before: &RecordState,
    request: SmallRequest,
    reply: &SmallReply,
) -> (Op, ModelOutcome) {
    let own = attempt(setting, request.token());
    let op = match request {
        // R7 (late copies): an abandoned token can come again, by a copy of its acquire that
        // was under way.
        SmallRequest::Acquire(token)
            if before.queue.contains(&token) && !before.is_waiting(token) =>
        {
            Op::Rejoin(own)
        }
        SmallRequest::Acquire(_) => Op::Enqueue(own),
        SmallRequest::Release(..) if is_stray(before, request) => Op::Cancel(own),
        SmallRequest::Release(_, _, ReleaseMode::Used(behind)) => {
            Op::UnlockAfterTurns(own, behind.into())
        }
        SmallRequest::Release(_, _, mode @ ReleaseMode::Lost(_)) => match mode.behind(own.spare) {
            Some(behind) => Op::UnlockAfterTurns(own, behind),
            None => Op::Drop(own),
        },
        SmallRequest::Release(_, _, ReleaseMode::Unused | ReleaseMode::KeepIfOwner) => {
            Op::Cancel(own)
        }
        SmallRequest::Release(_, _, ReleaseMode::Downgrade) => Op::Downgrade(own),
        SmallRequest::Force(token, fence) => Op::ForceRelease {
            client: token.client,
            fence: forced_fence(before, fence, reply).into(),
        },
        SmallRequest::Renew(_) => Op::Renew(own),
        SmallRequest::Sync(token) => Op::Sync {
            client: token.client,
        },
        SmallRequest::Lookup(_) => unreachable!("the model has no lookups"),
    };
    let outcome = match reply {
        SmallReply::Granted(grant) => ModelOutcome::Granted {
            fence: grant.fence.into(),
        },
        SmallReply::Waiting { .. } => ModelOutcome::Waiting { position: None },
        SmallReply::Late => ModelOutcome::Late,
        // The answer is about the caller's own lease, which the stray one is not.
        SmallReply::Already | SmallReply::NotOwner if is_stray(before, request) => {
            ModelOutcome::Released
        }
        _ if is_stray(before, request) => ModelOutcome::Forbidden,
        SmallReply::Refused => ModelOutcome::Refused,
        SmallReply::Already if matches!(op, Op::ForceRelease { .. }) => ModelOutcome::Refused,
        SmallReply::Released if matches!(op, Op::Downgrade(_)) => ModelOutcome::Downgraded,
        SmallReply::Released => ModelOutcome::Released,
        SmallReply::Already | SmallReply::NotOwner | SmallReply::Gone => ModelOutcome::Lost,
        SmallReply::Renewed { .. } => ModelOutcome::Renewed,
        SmallReply::Synced { .. } | SmallReply::Present { .. } => ModelOutcome::Done,
        SmallReply::Absent => ModelOutcome::Absent,
    };
    (op, outcome)
}

/// The fence of a release by force, as the model names it: the first of its grant.
fn forced_fence(before: &RecordState, fence: u32, reply: &SmallReply) -> u32 {
    if *reply == SmallReply::Already {
        // It ended a lease before, and must end no other.
        return 0;
    }
    let is_its =
        |holder: &&HolderState| (holder.fence..=holder.fence + holder.spare).contains(&fence);
    before
        .holding()
        .find(is_its)
        .map_or(fence, |holder| holder.fence)
}

/// Whether a release ends a lease that is not the one that the caller knows: a late copy of the
/// token's acquire took the lock.
fn is_stray(before: &RecordState, request: SmallRequest) -> bool {
    let SmallRequest::Release(token, fence, mode) = request else {
        return false;
    };
    let holder = before.holder(token);
    fence > 0
        && mode != ReleaseMode::KeepIfOwner
        && holder.is_some_and(|holder| holder.fence != fence)
}

fn attempt(setting: &SmallSetting, token: SmallToken) -> Attempt {
    let number = u16::from(token.client) << 8 | u16::from(token.number);
    Attempt {
        number,
        client: token.client,
        lease: LeaseTerm::Renewed,
        permits: setting.permits(token.client),
        spare: setting.spare_of(token.client),
    }
}

/// The waiters in the order of the queue. A token with two entries has the place of the first.
fn queued(setting: &SmallSetting, record: &RecordState) -> Vec<Attempt> {
    let mut queue = Vec::new();
    for token in record
        .queue
        .iter()
        .filter(|token| record.is_waiting(**token))
    {
        let attempt = attempt(setting, *token);
        if !queue.contains(&attempt) {
            queue.push(attempt);
        }
    }
    queue
}

/// R2 (served time): the clients without a stamp, or with one that is older than the horizon.
fn silent(record: &RecordState) -> u128 {
    let passed = record.since_served.min(STEP) as i8;
    let shows_life = |client: u8| {
        record
            .stamps
            .iter()
            .any(|stamp| stamp.client == client && stamp.ahead >= passed)
    };
    (0..CLIENTS)
        .filter(|client| !shows_life(*client))
        .fold(0, |mask, client| mask | 1 << client)
}

/// R2 (served time): it grows by the time since a script last looked, but at most by a step.
fn served_time(
    before: &RecordState,
    request: SmallRequest,
    after: &RecordState,
) -> Result<(), String> {
    let passed = if after.since_served == 0 {
        before.since_served.min(STEP) as i8
    } else {
        0
    };
    for stamp in before
        .stamps
        .iter()
        .filter(|stamp| stamp.client != request.token().client)
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
