//! How a connection learns what its server is, and gets its name.
//!
//! HELLO does both, at no cost in rights. Some proxies refuse its options, some the whole command, and
//! some close the connection upon a command that they do not know. Then less is asked for. No refusal
//! says which version refused: a proxy may stand in front of any server.

use std::sync::atomic::{AtomicU8, Ordering};

use redis::{Cmd, Value};

use super::connection::refusal;
use super::hello::{Hello, Info, Role, hello};
use crate::script::CallerId;
use crate::store::StoreFault;
use crate::store::refusal::is_unknown_command;

/// The question what a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Greeting {
    /// HELLO, with the connection's name.
    NamedHello,
    /// HELLO alone: a proxy may know no option of it.
    Hello,
    /// CLIENT SETNAME and INFO: a proxy may not know HELLO.
    Info,
    /// None: a proxy may close the connection upon each of the others.
    Silent,
}

/// The answer to a greeting.
pub(super) enum Said {
    Server(Hello),
    /// The server refuses this greeting. The next one is to be tried.
    Refused(Greeting),
}

/// Which greeting the connections of a node begin with.
pub(super) struct KnownGreeting(AtomicU8);

impl KnownGreeting {
    pub(super) fn new() -> KnownGreeting {
        KnownGreeting(AtomicU8::new(Greeting::NamedHello as u8))
    }

    pub(super) fn get(&self) -> Greeting {
        let all = [Greeting::NamedHello, Greeting::Hello, Greeting::Info];
        let known = usize::from(self.0.load(Ordering::Relaxed));
        all.get(known).copied().unwrap_or(Greeting::Silent)
    }

    /// The server refuses the greetings before this one.
    pub(super) fn fall_back_to(&self, greeting: Greeting) {
        self.0.fetch_max(greeting as u8, Ordering::Relaxed);
    }
}

impl Greeting {
    pub(super) fn commands(self, role: Role, caller_id: &CallerId) -> Vec<Cmd> {
        match self {
            Greeting::NamedHello => vec![role.hello(caller_id)],
            Greeting::Hello => vec![hello()],
            Greeting::Info => {
                let info = |section| {
                    let mut info = redis::cmd("INFO");
                    info.arg(section);
                    info
                };
                vec![
                    role.set_name(caller_id),
                    info("server"),
                    info("replication"),
                ]
            }
            Greeting::Silent => Vec::new(),
        }
    }

    pub(super) fn is_silent(self) -> bool {
        self == Greeting::Silent
    }

    /// Reads the replies to the commands.
    pub(super) fn read(self, replies: Vec<Value>) -> Result<Said, StoreFault> {
        let mut replies = replies.into_iter();
        match self {
            Greeting::NamedHello | Greeting::Hello => {
                match refusal(replies.next().unwrap_or_default()) {
                    Ok(Value::Array(fields)) => Ok(Said::Server(Hello::from_fields(&fields))),
                    Ok(_) => Ok(Said::Server(Hello::default())),
                    Err(refused) if refused.refuses_command() => {
                        Ok(Said::Refused(self.after(&refused)))
                    }
                    Err(other) => Err(other),
                }
            }
            Greeting::Info => {
                let mut text = String::new();
                // Whether the server knows names or not, no call depends on it.
                for reply in replies.skip(1) {
                    match refusal(reply) {
                        Ok(section) => {
                            text += &redis::from_redis_value::<String>(section).unwrap_or_default();
                            text += "\r\n";
                        }
                        Err(refused) if refused.refuses_command() => {}
                        Err(other) => return Err(other),
                    }
                }
                Ok(Said::Server(Hello::from_info(&Info::parse(&text))))
            }
            Greeting::Silent => Ok(Said::Server(Hello::default())),
        }
    }

    fn after(self, refused: &StoreFault) -> Greeting {
        let is_unknown = matches!(
            refused, StoreFault::Server { message, .. } if is_unknown_command(message));
        match self {
            Greeting::NamedHello if !is_unknown => Greeting::Hello,
            Greeting::NamedHello | Greeting::Hello => Greeting::Info,
            Greeting::Info | Greeting::Silent => Greeting::Silent,
        }
    }
}
