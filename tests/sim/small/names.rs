//! Other names for what only has to be told apart, so that as many worlds as can be are equal.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::{Client, Stage};
use super::shelf::{Ask, CLIENTS, Holder, News, STEP, Said, Shelf, Tok};
use super::world::World;
use crate::script::Family;

impl World {
    /// The same world with other names for what only has to be told apart, so that as many worlds as can be are equal.
    /// Answers which client has become which.
    pub(super) fn simplify(&mut self) -> [u8; CLIENTS as usize] {
        self.drop_what_is_over();
        self.number_tokens();
        self.number_marks();
        for client in &mut self.clients {
            client.jobs.sort();
            client.flights.sort();
        }
        self.news.sort();
        self.sort_clients()
    }

    /// What decides nothing any more.
    fn drop_what_is_over(&mut self) {
        for client in &mut self.clients {
            if client.stage != Stage::Asking {
                client.age = 0;
            }
            if client.stage != Stage::Queued {
                client.since = 0;
            }
        }
        if self.shelf.queue.is_empty() {
            // Nobody is beside whom a holder could be given his grace.
            let is_past = self.shelf.stamps.iter().all(|stamp| stamp.ahead < 0);
            self.shelf.idle = if is_past {
                0
            } else {
                self.shelf.idle.min(STEP)
            };
        }
    }

    fn number_tokens(&mut self) {
        let mut toks = BTreeSet::new();
        self.each_tok(&mut |tok| {
            toks.insert(*tok);
        });
        self.each_tok(&mut |tok| {
            let older = toks.range(Tok { number: 0, ..*tok }..*tok).count();
            tok.number = older as u8 + 1;
        });
    }

    /// Only the order of fences counts, of permits only that of a token's own, since f is none less than theirs; and only
    /// whether two rows of stamps are the same.
    fn number_marks(&mut self) {
        let has_permits = self.setting.family() == Family::Permit;
        let whose = |tok: Tok| if has_permits { Some(tok) } else { None };
        let mut fences = BTreeSet::new();
        self.each_fence(&mut |tok, fence| {
            fences.insert((whose(tok), *fence));
        });
        let Shelf { fence, ended, .. } = &mut self.shelf;
        if !has_permits {
            fences.extend([*fence, *ended].map(|fence| (None, fence)));
        }
        fences.retain(|(_, fence)| *fence > 0);
        let number = |tok, fence| fences.range((tok, 1)..(tok, fence)).count() as u32 + 1;
        let mut largest = 1;
        self.each_fence(&mut |tok, fence| {
            if *fence > 0 {
                *fence = number(whose(tok), *fence);
                largest = largest.max(*fence);
            }
        });
        let Shelf { fence, ended, .. } = &mut self.shelf;
        for fence in [fence, ended].into_iter().filter(|fence| **fence > 0) {
            *fence = if has_permits {
                largest
            } else {
                number(None, *fence)
            };
        }
        for c in 0..CLIENTS {
            let client = &mut self.clients[usize::from(c)];
            let stamp = self.shelf.stamps.iter_mut().find(|stamp| stamp.client == c);
            let mut marks: Vec<&mut u32> = vec![&mut client.since];
            marks.extend(stamp.map(|stamp| &mut stamp.since));
            for flight in &mut client.flights {
                if let Some(
                    Said::Waiting { since }
                    | Said::Synced { since, .. }
                    | Said::Present { since, .. },
                ) = flight.answer.as_mut().map(|a| &mut a.said)
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
        // Those who ask for the same are alike.
        let mut order: Vec<(u32, u64, u8)> = (0..CLIENTS)
            .map(|c| (self.setting.permits(c), self.likeness(c), c))
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
            self.each_tok(&mut |tok| tok.client = became[usize::from(tok.client)]);
            for stamp in &mut self.shelf.stamps {
                stamp.client = became[usize::from(stamp.client)];
            }
            self.shelf.holders.sort();
            self.shelf.waiters.sort();
            self.shelf.stamps.sort();
            self.news.sort();
        }
        became
    }

    /// A number that is the same for clients that are alike in all that this world has of them.
    fn likeness(&self, c: u8) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut client = self.clients[usize::from(c)].clone();
        client.each_tok(&mut |tok| tok.client = 0);
        client.hash(&mut hasher);
        let number = |tok: &Tok| if tok.client == c { tok.number } else { 0 };
        for holder in self
            .shelf
            .holders
            .iter()
            .filter(|holder| holder.tok.client == c)
        {
            let tok = Tok {
                client: 0,
                ..holder.tok
            };
            Holder { tok, ..*holder }.hash(&mut hasher);
        }
        self.shelf
            .queue
            .iter()
            .for_each(|tok| number(tok).hash(&mut hasher));
        self.shelf
            .waiters
            .iter()
            .filter(|(tok, _)| tok.client == c)
            .for_each(|(tok, at)| (tok.number, at).hash(&mut hasher));
        self.shelf
            .stamps
            .iter()
            .filter(|s| s.client == c)
            .for_each(|s| (s.ahead, s.since).hash(&mut hasher));
        let news = self.news.iter().filter(|news| news.to.client == c);
        news.for_each(|news| (news.to.number, news.fence, news.left).hash(&mut hasher));
        hasher.finish()
    }

    pub(super) fn each_tok(&mut self, f: &mut dyn FnMut(&mut Tok)) {
        self.shelf
            .holders
            .iter_mut()
            .for_each(|holder| f(&mut holder.tok));
        self.shelf.queue.iter_mut().for_each(&mut *f);
        self.shelf.waiters.iter_mut().for_each(|(tok, _)| f(tok));
        self.news.iter_mut().for_each(|news| f(&mut news.to));
        self.clients
            .iter_mut()
            .for_each(|client| client.each_tok(f));
    }

    /// With the token that it was given to.
    fn each_fence(&mut self, f: &mut dyn FnMut(Tok, &mut u32)) {
        self.shelf
            .holders
            .iter_mut()
            .for_each(|holder| f(holder.tok, &mut holder.fence));
        self.news
            .iter_mut()
            .for_each(|news| f(news.to, &mut news.fence));
        for client in &mut self.clients {
            if let Some(tok) = client.tok {
                f(tok, &mut client.fence);
            }
            client
                .jobs
                .iter_mut()
                .for_each(|job| f(job.tok, &mut job.fence));
            client.each_news(&mut |news| f(news.to, &mut news.fence));
            for flight in &mut client.flights {
                if let Ask::Release(tok, fence, _) = &mut flight.ask {
                    f(*tok, fence);
                }
            }
        }
    }
}

impl Client {
    fn each_tok(&mut self, f: &mut dyn FnMut(&mut Tok)) {
        self.tok.iter_mut().for_each(&mut *f);
        self.jobs.iter_mut().for_each(|job| f(&mut job.tok));
        for flight in &mut self.flights {
            match &mut flight.ask {
                Ask::Acquire(tok)
                | Ask::Release(tok, ..)
                | Ask::Renew(tok)
                | Ask::Sync(tok)
                | Ask::Lookup(tok) => {
                    f(tok);
                }
            }
        }
        self.each_news(&mut |news| f(&mut news.to));
    }

    fn each_news(&mut self, f: &mut dyn FnMut(&mut News)) {
        self.noted.iter_mut().for_each(&mut *f);
        for answer in self
            .flights
            .iter_mut()
            .filter_map(|flight| flight.answer.as_mut())
        {
            answer.grants.iter_mut().for_each(&mut *f);
            match &mut answer.said {
                Said::Granted(news)
                | Said::Synced {
                    owner: Some(news), ..
                } => f(news),
                _ => {}
            }
        }
    }
}
