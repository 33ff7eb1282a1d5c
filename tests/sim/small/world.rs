//! A whole world as a value, and all that can happen next in it.

use super::client::{Client, Doubt, Due, Flight, Stage};
use super::event::{Act, Event, Fate, Message};
use super::lab::Lab;
use super::setting::Setting;
use super::shelf::{Answer, Ask, CLIENTS, News, Said, Shelf, TTL, Tok, Way};

/// How often each thing may go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Budget {
    /// The news of a grant is lost.
    pub(crate) messages: u8,
    /// A request does not arrive.
    pub(crate) requests: u8,
    /// A reply does not arrive.
    pub(crate) replies: u8,
    /// A request arrives twice in a row, and the second answer is heard.
    pub(crate) resends: u8,
    /// A request, a reply or a message takes its time. A request can arrive at any time, also after its connection
    /// was closed; what waits for the reply does so for one tick.
    pub(crate) delays: u8,
    /// A waiter is dropped, or leaves at a deadline.
    pub(crate) give_ups: u8,
    /// A process ends at once.
    pub(crate) crashes: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) shelf: Shelf,
    pub(super) clients: [Client; CLIENTS as usize],
    /// Messages that take their time.
    pub(super) news: Vec<News>,
    pub(super) budget: Budget,
    pub(super) setting: Setting,
}

impl World {
    pub(super) fn new(setting: Setting, budget: Budget) -> World {
        World {
            setting,
            budget,
            ..World::default()
        }
    }

    /// What must happen before time goes on.
    pub(super) fn due(&self) -> Option<Act> {
        let due = |c: u8| Some(Act::Due(c, self.clients[usize::from(c)].due()?));
        (0..CLIENTS).find_map(due)
    }

    /// All that can happen.
    pub(super) fn acts(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for c in 0..CLIENTS {
            let client = &self.clients[usize::from(c)];
            acts.extend(client.due().map(|due| Act::Due(c, due)));
            match client.stage {
                Stage::Idle => acts.push(Act::Start(c)),
                Stage::Holding => {
                    acts.push(Act::Unlock(c));
                    acts.extend(
                        (self.setting.writes(c) && !client.downgraded).then_some(Act::Downgrade(c)),
                    );
                }
                Stage::Queued if self.budget.give_ups > 0 => {
                    acts.extend([Act::Leave(c), Act::Withdraw(c)])
                }
                Stage::Confirming if self.budget.give_ups > 0 => acts.push(Act::Leave(c)),
                Stage::Asking if self.budget.give_ups > 0 && client.wait == 0 => {
                    acts.push(Act::Leave(c))
                }
                _ => {}
            }
            if self.budget.crashes > 0 && client.stage != Stage::Crashed {
                acts.push(Act::Crash(c));
            }
            acts.extend((0..client.flights.len()).map(|flight| Act::Arrive(c, flight)));
        }
        acts.extend((0..self.news.len()).map(Act::Hear));
        if self.due().is_none() {
            acts.push(Act::Tick);
        }
        acts
    }

    /// Every way in which an act can go, and the worlds that come of it. An error is what is broken then.
    pub(super) fn after(&self, lab: &mut Lab, act: Act) -> Vec<(Event, Result<World, String>)> {
        let is_request = !matches!(
            act,
            Act::Crash(_) | Act::Arrive(..) | Act::Hear(_) | Act::Tick
        );
        let asks = matches!(act, Act::Start(_) | Act::Due(_, Due::Ask | Due::Requeue));
        let budget = &self.budget;
        let fates = [
            (Fate::Fine, true),
            (Fate::RequestLost, is_request && budget.requests > 0),
            (Fate::ReplyLost, is_request && budget.replies > 0),
            (Fate::SentTwice, is_request && budget.resends > 0),
            (Fate::RequestDelayed, is_request && budget.delays > 0),
            (Fate::RequestCutOff, asks && budget.delays > 0),
            (Fate::ReplyDelayed, is_request && budget.delays > 0),
        ];
        let mut worlds = Vec::new();
        for (fate, _) in fates.into_iter().filter(|(_, may)| *may) {
            let mut go = |message| {
                let event = Event { act, fate, message };
                let (world, published) = self.step(lab, event);
                worlds.push((event, world));
                published
            };
            if go(Message::Heard) {
                if budget.messages > 0 {
                    go(Message::Lost);
                }
                if budget.delays
                    > u8::from(matches!(
                        fate,
                        Fate::RequestDelayed | Fate::RequestCutOff | Fate::ReplyDelayed
                    ))
                {
                    go(Message::Delayed);
                }
            }
        }
        worlds
    }

    /// The world after an event, and whether anything was published.
    pub(super) fn step(&self, lab: &mut Lab, event: Event) -> (Result<World, String>, bool) {
        let mut going = Going {
            world: self.clone(),
            lab,
            event,
            published: false,
        };
        let result = going.go();
        let Going {
            world, published, ..
        } = going;
        (result.map(|()| world), published)
    }
}

/// A step on its way.
struct Going<'a> {
    world: World,
    lab: &'a mut Lab,
    event: Event,
    published: bool,
}

impl Going<'_> {
    fn go(&mut self) -> Result<(), String> {
        let fresh = self.fresh_number();
        let budget = &mut self.world.budget;
        match self.event.fate {
            Fate::Fine => {}
            Fate::RequestLost => budget.requests -= 1,
            Fate::ReplyLost => budget.replies -= 1,
            Fate::SentTwice => budget.resends -= 1,
            Fate::RequestDelayed | Fate::RequestCutOff | Fate::ReplyDelayed => budget.delays -= 1,
        }
        match self.event.act {
            Act::Leave(_) | Act::Withdraw(_) => budget.give_ups -= 1,
            Act::Crash(_) => budget.crashes -= 1,
            _ => {}
        }
        match self.event.act {
            Act::Start(c) => {
                let ask = self.client(c).begin(Tok {
                    client: c,
                    number: fresh,
                });
                self.put(c, ask)
            }
            Act::Due(c, due) => {
                let client = self.client(c);
                let ask = match due {
                    // R6
                    Due::Ask if client.age >= TTL => {
                        client.give_back_own();
                        client.begin(Tok {
                            client: c,
                            number: fresh,
                        })
                    }
                    Due::Ask => client.ask(),
                    Due::Requeue => {
                        if client.doubt != Doubt::None {
                            client.give_back_own();
                        }
                        client.begin(Tok {
                            client: c,
                            number: fresh,
                        })
                    }
                    Due::Sync => {
                        client.wait = 1;
                        Ask::Sync(client.own())
                    }
                    Due::LookUp => {
                        // If this is lost, the next sync finds the same.
                        client.suspect = false;
                        Ask::Lookup(client.own())
                    }
                    Due::Confirm | Due::Renew => {
                        client.wait = 1;
                        Ask::Renew(client.own())
                    }
                    Due::Job(at) => client.send_job(at),
                };
                self.put(c, ask)
            }
            Act::Unlock(c) => {
                let ask = self.client(c).unlock();
                self.put(c, ask)
            }
            Act::Downgrade(c) => {
                let ask = self.client(c).downgrade();
                self.put(c, ask)
            }
            Act::Leave(c) => {
                let ask = self.client(c).leave();
                self.put(c, ask)
            }
            Act::Withdraw(c) => {
                let ask = self.client(c).withdraw();
                self.put(c, ask)
            }
            Act::Crash(c) => {
                self.client(c).crash();
                Ok(())
            }
            Act::Arrive(c, at) => {
                let Flight {
                    ask,
                    answer,
                    late,
                    deaf,
                } = self.client(c).flights.remove(at);
                let answer = match answer {
                    Some(answer) => answer,
                    None => self.run(ask, late)?,
                };
                if deaf {
                    Ok(())
                } else {
                    self.answer(c, ask, &answer)
                }
            }
            Act::Hear(at) => {
                let news = self.world.news.remove(at);
                self.client(news.to.client).hear(news);
                Ok(())
            }
            Act::Tick => {
                self.world.shelf.tick();
                self.world.clients.iter_mut().for_each(Client::tick);
                self.world
                    .news
                    .iter_mut()
                    .for_each(|news| news.left = news.left.saturating_sub(1));
                Ok(())
            }
        }
    }

    fn client(&mut self, c: u8) -> &mut Client {
        &mut self.world.clients[usize::from(c)]
    }

    /// Larger than that of any token that anybody has.
    fn fresh_number(&mut self) -> u8 {
        let mut largest = 0;
        self.world
            .each_tok(&mut |tok| largest = largest.max(tok.number));
        largest + 1
    }

    fn put(&mut self, c: u8, ask: Ask) -> Result<(), String> {
        let flight = |answer, deaf| Flight {
            ask,
            answer,
            late: false,
            deaf,
        };
        match self.event.fate {
            Fate::Fine => {
                let answer = self.run(ask, false)?;
                self.answer(c, ask, &answer)
            }
            Fate::SentTwice => {
                let first = self.run(ask, false)?;
                let answer = self.run(ask, false)?;
                let agree = match (ask, &first.said) {
                    (Ask::Release(_, _, Way::Used), Said::Released) => answer.said == Said::Already,
                    (Ask::Release(_, _, Way::Unused | Way::Lost), _) => true,
                    (_, said) => *said == answer.said,
                };
                if !agree {
                    return Err(format!(
                        "P7: {ask:?} was answered {:?} and then {:?}",
                        first.said, answer.said
                    ));
                }
                self.answer(c, ask, &answer)
            }
            Fate::RequestLost => Ok(()),
            Fate::ReplyLost => self.run(ask, false).map(|_| ()),
            Fate::RequestDelayed => {
                self.client(c).flights.push(flight(None, false));
                Ok(())
            }
            Fate::RequestCutOff => {
                self.client(c).flights.push(flight(None, true));
                self.client(c).cut();
                Ok(())
            }
            Fate::ReplyDelayed => {
                let answer = self.run(ask, false)?;
                self.client(c).flights.push(flight(Some(answer), false));
                Ok(())
            }
        }
    }

    /// At the server.
    fn run(&mut self, ask: Ask, late: bool) -> Result<Answer, String> {
        let done = self.lab.run(&self.world.shelf, ask, late)?;
        self.world.shelf = done.shelf.clone();
        for news in &done.news {
            self.published = true;
            match self.event.message {
                Message::Heard => self.client(news.to.client).hear(*news),
                Message::Lost => {
                    self.world.budget.messages = self.world.budget.messages.saturating_sub(1)
                }
                Message::Delayed => {
                    self.world.budget.delays = self.world.budget.delays.saturating_sub(1);
                    self.world.news.push(*news);
                }
            }
        }
        Ok(done.answer.clone())
    }

    fn answer(&mut self, c: u8, ask: Ask, answer: &Answer) -> Result<(), String> {
        self.client(c).hear_answer(ask, answer)
    }
}
