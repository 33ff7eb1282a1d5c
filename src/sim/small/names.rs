//! Other names for what only has to be told apart, so that as many worlds as can be are equal.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::Client;
use super::shelf::{Ask, CLIENTS, News, Said, Tok};
use super::world::World;

impl World {
    /// The same world with other names for what only has to be told apart, so that as many worlds as can be are equal.
    /// Answers which client has become which.
    pub(super) fn simplify(&mut self) -> [u8; CLIENTS as usize] {
        self.number_tokens();
        self.number_marks();
        for client in &mut self.clients {
            client.jobs.sort();
            client.flights.sort();
        }
        self.news.sort();
        self.sort_clients()
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

    /// Only the order of fences counts, and only whether two rows of stamps are the same.
    fn number_marks(&mut self) {
        let mut fences = BTreeSet::new();
        self.each_fence(&mut |fence| {
            fences.insert(*fence);
        });
        fences.remove(&0);
        self.each_fence(&mut |fence| {
            if *fence > 0 {
                *fence = fences.range(..*fence).count() as u32 + 1;
            }
        });
        for c in 0..CLIENTS {
            let client = &mut self.clients[usize::from(c)];
            let stamp = self.shelf.stamps.iter_mut().find(|stamp| stamp.client == c);
            let mut marks: Vec<&mut u32> = vec![&mut client.since];
            marks.extend(stamp.map(|stamp| &mut stamp.since));
            for flight in &mut client.flights {
                if let Some(Said::Waiting { since } | Said::Synced { since, .. }) =
                    flight.answer.as_mut().map(|a| &mut a.said)
                {
                    marks.push(since);
                }
            }
            let known: BTreeSet<u32> = marks.iter().map(|mark| **mark).filter(|mark| *mark > 0).collect();
            for mark in marks.into_iter().filter(|mark| **mark > 0) {
                *mark = known.range(..*mark).count() as u32 + 1;
            }
        }
    }

    fn sort_clients(&mut self) -> [u8; CLIENTS as usize] {
        let mut order: Vec<(u64, u8)> = (0..CLIENTS).map(|c| (self.likeness(c), c)).collect();
        order.sort();
        let mut became = [0; CLIENTS as usize];
        for (to, (_, from)) in order.iter().enumerate() {
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
        self.shelf.owner.as_ref().map(number).hash(&mut hasher);
        self.shelf.queue.iter().for_each(|tok| number(tok).hash(&mut hasher));
        self.shelf
            .waiters
            .iter()
            .filter(|(tok, _)| tok.client == c)
            .for_each(|(tok, at)| (tok.number, at).hash(&mut hasher));
        self.shelf.stamps.iter().filter(|s| s.client == c).for_each(|s| (s.ahead, s.since).hash(&mut hasher));
        let news = self.news.iter().filter(|news| news.to.client == c);
        news.for_each(|news| (news.to.number, news.fence, news.left).hash(&mut hasher));
        hasher.finish()
    }

    pub(super) fn each_tok(&mut self, f: &mut dyn FnMut(&mut Tok)) {
        self.shelf.owner.iter_mut().for_each(&mut *f);
        self.shelf.queue.iter_mut().for_each(&mut *f);
        self.shelf.waiters.iter_mut().for_each(|(tok, _)| f(tok));
        self.news.iter_mut().for_each(|news| f(&mut news.to));
        self.clients.iter_mut().for_each(|client| client.each_tok(f));
    }

    fn each_fence(&mut self, f: &mut dyn FnMut(&mut u32)) {
        f(&mut self.shelf.fence);
        f(&mut self.shelf.ended);
        self.news.iter_mut().for_each(|news| f(&mut news.fence));
        for client in &mut self.clients {
            f(&mut client.fence);
            client.jobs.iter_mut().for_each(|job| f(&mut job.fence));
            client.each_news(&mut |news| f(&mut news.fence));
            for flight in &mut client.flights {
                if let Ask::Release(_, fence, _) = &mut flight.ask {
                    f(fence);
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
                Ask::Acquire(tok) | Ask::Release(tok, ..) | Ask::Renew(tok) | Ask::Sync(tok) => f(tok),
            }
        }
        self.each_news(&mut |news| f(&mut news.to));
    }

    fn each_news(&mut self, f: &mut dyn FnMut(&mut News)) {
        self.noted.iter_mut().for_each(&mut *f);
        for answer in self.flights.iter_mut().filter_map(|flight| flight.answer.as_mut()) {
            answer.grants.iter_mut().for_each(&mut *f);
            match &mut answer.said {
                Said::Granted(news) | Said::Synced { owner: Some(news), .. } => f(news),
                _ => {}
            }
        }
    }
}
