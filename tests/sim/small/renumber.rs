//! Renumbering: worlds that differ only in the names of tokens, fences and clients become equal, so
//! the search visits them once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::{Client, ClientStage};
use super::record_state::{
    CLIENTS, HolderState, RecordState, STEP, SmallGrant, SmallReply, SmallRequest, SmallToken,
};
use super::world::SmallWorld;
use crate::script::Family;

impl SmallWorld {
    /// Renumbers everything that only has to be distinct, so that as many worlds as possible are
    /// equal. Returns the new number of each client.
    pub(super) fn simplify(&mut self) -> [u8; CLIENTS as usize] {
        self.reset_unused();
        self.number_tokens();
        self.number_fences();
        self.number_stamp_rows();
        for client in &mut self.clients {
            client.releases.sort();
            client.in_flight.sort();
        }
        self.messages.sort();
        self.wanted.sort();
        self.sort_clients()
    }

    /// Resets what decides nothing any more.
    fn reset_unused(&mut self) {
        self.record.forced_by = None;
        let may_use =
            |token: &SmallToken| self.clients[usize::from(token.client)].token == Some(*token);
        self.forced = self.forced.filter(may_use);
        for client in &mut self.clients {
            if client.stage != ClientStage::Acquiring {
                client.age = 0;
            }
            if client.stage != ClientStage::Queued {
                client.since = 0;
            }
            // It is about an older grant.
            let has_lease = matches!(client.stage, ClientStage::Holding | ClientStage::Kept);
            if client.token.is_none() || has_lease && !client.is_wanted() {
                client.wanted_fence = 0;
            }
        }
        if self.record.entries() == 0 {
            // A holder gets grace only while its process has a waiter, and there are no waiters.
            let is_past = self.record.stamps.iter().all(|stamp| stamp.ahead < 0);
            self.record.since_served = if is_past {
                0
            } else {
                self.record.since_served.min(STEP)
            };
        }
    }

    fn number_tokens(&mut self) {
        let mut tokens = BTreeSet::new();
        self.each_token(&mut |token| {
            tokens.insert(*token);
        });
        self.each_token(&mut |token| {
            let older = tokens
                .range(
                    SmallToken {
                        number: 0,
                        ..*token
                    }..*token,
                )
                .count();
            token.number = older as u8 + 1;
        });
    }

    /// Only the order of fences counts, and for a mutex with turns how far two fences are apart, up
    /// to the spare: whether one is among those that the grant of the other has reserved. For
    /// permits, only the order of one token's own fences
    /// counts: a new fence is compared with the record's, which is at least as large as every
    /// holder's.
    fn number_fences(&mut self) {
        let has_permits = self.setting.family() == Family::Permit;
        let whose = |token: SmallToken| if has_permits { Some(token) } else { None };
        let mut fences = BTreeSet::new();
        self.each_fence(&mut |token, fence| {
            fences.insert((whose(token), *fence));
        });
        let most = self.setting.spare + 1;
        let RecordState {
            fence, ended_fence, ..
        } = &mut self.record;
        if !has_permits {
            fences.extend([*fence, *ended_fence, self.last_used].map(|fence| (None, fence)));
        }
        fences.retain(|(_, fence)| *fence > 0);
        let mut numbers = BTreeMap::new();
        let mut last: Option<(Option<SmallToken>, u32, u32)> = None;
        for (token, fence) in fences {
            let number = match last {
                Some((before, smaller, number)) if before == token => {
                    number + (fence - smaller).min(most)
                }
                _ => 1,
            };
            numbers.insert((token, fence), number);
            last = Some((token, fence, number));
        }
        let number = |token, fence: u32| numbers[&(token, fence)];
        let mut largest = 1;
        self.each_fence(&mut |token, fence| {
            if *fence > 0 {
                *fence = number(whose(token), *fence);
                largest = largest.max(*fence);
            }
        });
        let RecordState {
            fence, ended_fence, ..
        } = &mut self.record;
        for fence in [fence, ended_fence, &mut self.last_used]
            .into_iter()
            .filter(|fence| **fence > 0)
        {
            *fence = if has_permits {
                largest
            } else {
                number(None, *fence)
            };
        }
    }

    /// Two rows of stamps are only compared: whether they are the same is all that counts.
    fn number_stamp_rows(&mut self) {
        for c in 0..CLIENTS {
            let client = &mut self.clients[usize::from(c)];
            let stamp = self
                .record
                .stamps
                .iter_mut()
                .find(|stamp| stamp.client == c);
            let mut marks: Vec<&mut u32> = vec![&mut client.since];
            marks.extend(stamp.map(|stamp| &mut stamp.since));
            for flight in &mut client.in_flight {
                if let Some(
                    SmallReply::Waiting { since }
                    | SmallReply::Synced { since, .. }
                    | SmallReply::Present { since, .. },
                ) = flight.answer.as_mut().map(|answer| &mut answer.reply)
                {
                    marks.push(since);
                }
            }
            let known: BTreeSet<u32> = marks
                .iter()
                .map(|mark| **mark)
                .filter(|mark| *mark > 0)
                .collect();
            for mark in marks.into_iter().filter(|mark| **mark > 0) {
                *mark = known.range(..*mark).count() as u32 + 1;
            }
        }
    }

    fn sort_clients(&mut self) -> [u8; CLIENTS as usize] {
        // Clients of the same sort are alike.
        let mut order: Vec<_> = (0..CLIENTS)
            .map(|c| (self.setting.sort_of(c), self.likeness(c), c))
            .collect();
        order.sort();
        let mut became = [0; CLIENTS as usize];
        for (to, (_, _, from)) in order.iter().enumerate() {
            became[usize::from(*from)] = to as u8;
        }
        if !became.is_sorted() {
            let mut clients = std::mem::take(&mut self.clients);
            for (from, client) in clients.iter_mut().enumerate() {
                self.clients[usize::from(became[from])] = std::mem::take(client);
            }
            self.each_token(&mut |token| token.client = became[usize::from(token.client)]);
            for stamp in &mut self.record.stamps {
                stamp.client = became[usize::from(stamp.client)];
            }
            for wanted in &mut self.wanted {
                wanted.client = became[usize::from(wanted.client)];
            }
            self.record.holders.sort();
            self.record.waiters.sort();
            self.record.stamps.sort();
            self.messages.sort();
            self.wanted.sort();
        }
        became
    }

    /// A number that is the same for two clients if this world has the same state of both.
    fn likeness(&self, c: u8) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut client = self.clients[usize::from(c)].clone();
        client.each_token(&mut |token| token.client = 0);
        client.hash(&mut hasher);
        let number = |token: &SmallToken| if token.client == c { token.number } else { 0 };
        for holder in self
            .record
            .holders
            .iter()
            .filter(|holder| holder.token.client == c)
        {
            let token = SmallToken {
                client: 0,
                ..holder.token
            };
            HolderState { token, ..*holder }.hash(&mut hasher);
        }
        self.record
            .queue
            .iter()
            .for_each(|token| number(token).hash(&mut hasher));
        self.record
            .waiters
            .iter()
            .filter(|(token, _)| token.client == c)
            .for_each(|(token, at)| (token.number, at).hash(&mut hasher));
        self.record
            .stamps
            .iter()
            .filter(|stamp| stamp.client == c)
            .for_each(|stamp| (stamp.ahead, stamp.since).hash(&mut hasher));
        self.messages
            .iter()
            .filter(|grant| grant.to.client == c)
            .for_each(|grant| {
                (grant.to.number, grant.fence, grant.left, grant.waits).hash(&mut hasher);
            });
        self.wanted
            .iter()
            .filter(|wanted| wanted.client == c)
            .for_each(|wanted| wanted.fence.hash(&mut hasher));
        hasher.finish()
    }

    pub(super) fn each_token(&mut self, f: &mut dyn FnMut(&mut SmallToken)) {
        self.record
            .holders
            .iter_mut()
            .for_each(|holder| f(&mut holder.token));
        self.record.queue.iter_mut().for_each(&mut *f);
        self.record
            .waiters
            .iter_mut()
            .for_each(|(token, _)| f(token));
        self.messages.iter_mut().for_each(|grant| f(&mut grant.to));
        self.forced.iter_mut().for_each(&mut *f);
        self.clients
            .iter_mut()
            .for_each(|client| client.each_token(f));
    }

    /// Each fence, with the token that it was granted to.
    fn each_fence(&mut self, f: &mut dyn FnMut(SmallToken, &mut u32)) {
        self.record
            .holders
            .iter_mut()
            .for_each(|holder| f(holder.token, &mut holder.fence));
        self.messages
            .iter_mut()
            .for_each(|grant| f(grant.to, &mut grant.fence));
        // Only a mutex has these, and there the token does not matter.
        for wanted in &mut self.wanted {
            let token = SmallToken {
                client: wanted.client,
                number: 0,
            };
            f(token, &mut wanted.fence);
        }
        for client in &mut self.clients {
            if let Some(token) = client.token {
                f(token, &mut client.fence);
                f(token, &mut client.wanted_fence);
            }
            client
                .releases
                .iter_mut()
                .for_each(|release| f(release.token, &mut release.fence));
            client.each_grant(&mut |grant| f(grant.to, &mut grant.fence));
            for flight in &mut client.in_flight {
                if let SmallRequest::Release(token, fence, _) | SmallRequest::Force(token, fence) =
                    &mut flight.request
                {
                    f(*token, fence);
                }
            }
        }
    }
}

impl Client {
    fn each_token(&mut self, f: &mut dyn FnMut(&mut SmallToken)) {
        self.token.iter_mut().for_each(&mut *f);
        self.releases
            .iter_mut()
            .for_each(|release| f(&mut release.token));
        for flight in &mut self.in_flight {
            match &mut flight.request {
                SmallRequest::Acquire(token)
                | SmallRequest::Release(token, ..)
                | SmallRequest::Force(token, _)
                | SmallRequest::Renew(token)
                | SmallRequest::Sync(token)
                | SmallRequest::Lookup(token) => {
                    f(token);
                }
            }
        }
        self.each_grant(&mut |grant| f(&mut grant.to));
    }

    fn each_grant(&mut self, f: &mut dyn FnMut(&mut SmallGrant)) {
        self.noted_grant.iter_mut().for_each(&mut *f);
        for answer in self
            .in_flight
            .iter_mut()
            .filter_map(|flight| flight.answer.as_mut())
        {
            answer.grants.iter_mut().for_each(&mut *f);
            match &mut answer.reply {
                SmallReply::Granted(grant)
                | SmallReply::Synced {
                    owner: Some(grant), ..
                } => f(grant),
                _ => {}
            }
        }
    }
}
