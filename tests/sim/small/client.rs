//! A process with one waiter, as far as the protocol goes: what `engine/place.rs`, `lease.rs` and the renewal thread
//! decide, as a plain value. Its times are ticks from now.

use super::shelf::{Answer, Ask, News, PERIOD, Said, TTL, Tok, Way};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// A request is in flight while `wait` is not over; else it is to be sent.
    Asking,
    Queued,
    /// Redis does not know it any more (R4).
    Gone,
    /// The request that leaves the queue is in flight.
    Leaving,
    /// Granted, perhaps long ago (R12).
    Confirming,
    Holding,
    Crashed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) stage: Stage,
    pub(super) tok: Option<Tok>,
    /// Until the next request of this stage is due.
    pub(super) wait: u8,
    /// Of the lease: its fence, and its time by the client's own clock.
    pub(super) fence: u32,
    pub(super) left: u8,
    /// Since the token was first sent (R6).
    pub(super) age: u8,
    /// Which row of stamps it was enqueued under.
    pub(super) since: u32,
    /// Its place may be gone: Redis is to be asked.
    pub(super) suspect: bool,
    /// Holding what is left of it after all permits but one were given back, whether Redis knows or not.
    pub(super) downgraded: bool,
    pub(super) doubt: Doubt,
    /// R8
    pub(super) noted: Option<News>,
    pub(super) jobs: Vec<Job>,
    pub(super) flights: Vec<Flight>,
}

/// Whether an acquire of the token had no answer, and can still take it (R7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Doubt {
    #[default]
    None,
    Past,
    Open,
}

/// A token to be given back in the background.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Job {
    pub(super) tok: Tok,
    pub(super) fence: u32,
    pub(super) way: Way,
    /// A delayed acquire can still take the token (R7).
    pub(super) open: bool,
    pub(super) wait: u8,
}

impl Job {
    /// Who gives back some permits, and then the rest, does both.
    fn is_of(&self, tok: Tok, way: Way) -> bool {
        self.tok == tok && (self.way == Way::Downgrade) == (way == Way::Downgrade)
    }
}

/// What is under way, longer than a request takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Flight {
    pub(super) ask: Ask,
    /// It has arrived, and this comes back.
    pub(super) answer: Option<Answer>,
    /// R5: past its `not_after`.
    pub(super) late: bool,
    /// Nobody waits for the answer any more.
    pub(super) deaf: bool,
}

impl Client {
    /// Whether it has something to do before time goes on.
    pub(super) fn due(&self) -> Option<Due> {
        if self.suspect {
            return Some(Due::LookUp);
        }
        if self.wait == 0 {
            match self.stage {
                Stage::Asking => return Some(Due::Ask),
                Stage::Gone => return Some(Due::Requeue),
                Stage::Queued => return Some(Due::Sync),
                Stage::Confirming => return Some(Due::Confirm),
                Stage::Holding => return Some(Due::Renew),
                Stage::Idle | Stage::Leaving | Stage::Crashed => {}
            }
        }
        self.jobs.iter().position(|job| job.wait == 0).map(Due::Job)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Holding | Stage::Crashed)
    }

    /// R1: another attempt, another token.
    pub(super) fn begin(&mut self, tok: Tok) -> Ask {
        (self.stage, self.tok, self.age, self.since) = (Stage::Asking, Some(tok), 0, 0);
        (self.doubt, self.noted) = (Doubt::None, None);
        self.ask()
    }

    pub(super) fn ask(&mut self) -> Ask {
        self.wait = PERIOD;
        Ask::Acquire(self.own())
    }

    pub(super) fn own(&self) -> Tok {
        self.tok.expect("whoever asks has a token")
    }

    /// Where it stands among the jobs.
    pub(super) fn give_back(&mut self, tok: Tok, fence: u32, way: Way) -> usize {
        if let Some(at) = self.jobs.iter().position(|job| job.is_of(tok, way)) {
            return at;
        }
        let open = self.tok == Some(tok) && self.doubt == Doubt::Open && way != Way::Downgrade;
        self.jobs.push(Job {
            tok,
            fence,
            way,
            open,
            wait: 0,
        });
        self.jobs.len() - 1
    }

    /// R4, R6: what is left of a token that takes no further part.
    pub(super) fn give_back_own(&mut self) {
        let _ = self.give_back(self.own(), 0, Way::Unused);
    }

    fn end(&mut self) {
        let (jobs, flights) = (
            std::mem::take(&mut self.jobs),
            std::mem::take(&mut self.flights),
        );
        *self = Client {
            jobs,
            flights,
            ..Client::default()
        };
    }

    /// Ends the lease before its release is sent (R14). What has no answer goes on as a job.
    pub(super) fn unlock(&mut self) -> Ask {
        let job = self.give_back(self.own(), self.fence, Way::Used);
        self.end();
        self.send_job(job)
    }

    /// Counts for one permit before all others are given back.
    pub(super) fn downgrade(&mut self) -> Ask {
        self.downgraded = true;
        let job = self.give_back(self.own(), self.fence, Way::Downgrade);
        self.send_job(job)
    }

    /// A waiter is dropped.
    pub(super) fn leave(&mut self) -> Ask {
        let job = self.give_back(self.own(), 0, Way::Unused);
        self.end();
        self.send_job(job)
    }

    pub(super) fn withdraw(&mut self) -> Ask {
        (self.stage, self.wait, self.suspect) = (Stage::Leaving, PERIOD, false);
        Ask::Release(self.own(), 0, Way::KeepIfOwner)
    }

    pub(super) fn send_job(&mut self, at: usize) -> Ask {
        let job = &mut self.jobs[at];
        job.wait = PERIOD;
        Ask::Release(job.tok, job.fence, job.way)
    }

    pub(super) fn crash(&mut self) {
        let mut flights = std::mem::take(&mut self.flights);
        flights.retain(|flight| flight.answer.is_none());
        flights.iter_mut().for_each(|flight| flight.deaf = true);
        *self = Client {
            stage: Stage::Crashed,
            flights,
            ..Client::default()
        };
    }

    /// The news of a grant, from elsewhere than the answer to the request in flight.
    pub(super) fn hear(&mut self, news: News) {
        if self.stage == Stage::Crashed {
            return;
        }
        if self.tok == Some(news.to) {
            match self.stage {
                // R8
                Stage::Asking | Stage::Leaving => self.noted = Some(news),
                Stage::Queued | Stage::Gone => self.accept(news),
                _ => {}
            }
        } else {
            // R13
            let _ = self.give_back(news.to, 0, Way::Unused);
        }
    }

    /// R12: with less than half of its time left it is confirmed first. A margin is off what is left, so it is less
    /// than it says.
    fn accept(&mut self, news: News) {
        (self.noted, self.suspect) = (None, false);
        if 2 * news.left > TTL {
            self.hold(news.fence, news.left);
        } else {
            (self.stage, self.fence, self.wait) = (Stage::Confirming, news.fence, 0);
        }
    }

    fn hold(&mut self, fence: u32, left: u8) {
        (self.stage, self.fence, self.left, self.wait) = (Stage::Holding, fence, left, PERIOD);
    }

    /// The connection of the request in flight is gone: it may be done, now or later.
    pub(super) fn cut(&mut self) {
        self.doubt = Doubt::Open;
        self.unanswered();
    }

    fn unanswered(&mut self) {
        self.wait = 0;
        if let Some(news) = self.noted.take() {
            self.accept(news);
        }
    }

    /// What an answer means.
    pub(super) fn hear_answer(&mut self, ask: Ask, answer: &Answer) -> Result<(), String> {
        for news in &answer.grants {
            self.hear(*news);
        }
        let own = self.tok == Some(ask.tok());
        match (ask, self.stage) {
            (Ask::Acquire(_), Stage::Asking) if own => match answer.said {
                Said::Granted(news) => self.accept(news),
                Said::Waiting { since } => {
                    (self.stage, self.since, self.wait) = (Stage::Queued, since, PERIOD);
                    if let Some(news) = self.noted.take() {
                        self.accept(news);
                    }
                }
                Said::Late => self.wait = 0,
                _ => return Err(format!("{ask:?} is answered {answer:?}")),
            },
            (Ask::Release(_, _, Way::KeepIfOwner), Stage::Leaving) if own => match answer.said {
                Said::Granted(news) => self.accept(news),
                _ => {
                    // R7: a copy of its acquire may be under way.
                    if self.doubt != Doubt::None {
                        self.give_back_own();
                    }
                    self.end();
                }
            },
            (Ask::Release(tok, _, way), _) => {
                self.jobs.retain(|job| !job.is_of(tok, way) || job.open);
                if way == Way::Downgrade
                    && own
                    && self.stage == Stage::Holding
                    && answer.said != Said::Released
                {
                    self.lose();
                }
                // The answer that may have been lost could have had the grant of a place of ours.
                if self.stage == Stage::Queued {
                    self.wait = 0;
                }
            }
            (Ask::Renew(_), Stage::Holding) if own => match answer.said {
                Said::Renewed { left } => self.left = self.left.max(left),
                _ => self.lose(),
            },
            (Ask::Renew(_), Stage::Confirming) if own => match answer.said {
                Said::Renewed { left } => self.hold(self.fence, left),
                _ => self.be_gone(),
            },
            (Ask::Sync(tok), stage) if own => match &answer.said {
                Said::Synced {
                    owner,
                    ours,
                    since,
                    known,
                    ..
                } => {
                    if let Some(news) = owner.filter(|news| *ours || news.to == tok) {
                        self.hear(news);
                    }
                    self.suspect |= self.stage == Stage::Queued && (!known || *since != self.since);
                }
                Said::Absent if stage == Stage::Queued => self.be_gone(),
                Said::Late if stage == Stage::Queued => self.wait = 0,
                _ => {}
            },
            (Ask::Lookup(_), Stage::Queued | Stage::Confirming) if own => match answer.said {
                Said::Present {
                    waits: true, since, ..
                } => self.since = since,
                // Granted, and the message was missed: a sync has the fence.
                Said::Present { owns: true, .. } if self.stage == Stage::Queued => self.wait = 0,
                Said::Present { owns: false, .. } => self.be_gone(),
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn be_gone(&mut self) {
        (self.stage, self.wait, self.suspect) = (Stage::Gone, 0, false);
    }

    /// A guard lost its lock, and gives the token up.
    fn lose(&mut self) {
        let _ = self.give_back(self.own(), self.fence, Way::Lost);
        self.end();
    }

    pub(super) fn tick(&mut self) {
        let had_to_wait = self.wait > 0;
        self.wait = self.wait.saturating_sub(1);
        self.age = if self.tok.is_some() {
            (self.age + 1).min(TTL)
        } else {
            0
        };
        if self.doubt == Doubt::Open {
            self.doubt = Doubt::Past;
        }
        if let Some(news) = &mut self.noted {
            news.left = news.left.saturating_sub(1);
        }
        for job in &mut self.jobs {
            job.open = false;
            job.wait = job.wait.saturating_sub(1);
        }
        self.flights.retain(|flight| flight.answer.is_none());
        self.flights
            .iter_mut()
            .for_each(|flight| (flight.late, flight.deaf) = (true, true));
        match self.stage {
            Stage::Holding => {
                self.left -= 1;
                if self.left == 0 {
                    self.lose();
                }
            }
            Stage::Asking if had_to_wait => {
                self.doubt = Doubt::Past;
                self.unanswered();
            }
            Stage::Leaving => {
                self.unanswered();
                if self.stage == Stage::Leaving {
                    self.give_back_own();
                    self.end();
                }
            }
            _ => {}
        }
    }
}

/// What has to be done before time goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Ask,
    Requeue,
    Sync,
    LookUp,
    Confirm,
    Renew,
    Job(usize),
}
