//! One connection to a server, for questions.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use fairlock::{Step, TlsFailure};
use redis::{Cmd, Parser, RedisError, Value};

use super::fault::{Fault, refusal};
use super::place::Server;
use super::socket::{Peer, peers_of, speaks_tls};
use super::stream::Stream;

pub(super) type Reply = Result<Value, Fault>;

pub(super) struct Link {
    stream: Stream,
    parser: Parser,
    /// The answer to HELLO. `None`: the server, or a proxy before it, has no HELLO.
    pub(super) hello: Option<Hello>,
    /// It was closed upon a greeting, so it is asked for nothing that a proxy may not know.
    pub(super) is_silent: bool,
}

/// A server's description of itself.
#[derive(Debug, Default)]
pub(super) struct Hello {
    version: String,
}

impl Link {
    /// Connects, logs in and gives the connection its name. All addresses of the server are tried
    /// at once: one of them may lead nowhere. Blocks until `until` at most, unless the system's
    /// resolver takes longer.
    pub(super) fn open(server: &Server, until: Instant) -> Result<Link, Fault> {
        let peers = peers_of(&server.address)?;
        if let [only] = &peers[..] {
            return Link::open_to(only, server, until);
        }
        let (sender, outcomes) = unbounded();
        let mut failed = Fault::timed_out(Step::Connect);
        for peer in peers {
            let (server, sender) = (server.clone(), sender.clone());
            let spawned = std::thread::Builder::new().spawn(move || {
                // Another address may have won.
                let _ = sender.send(Link::open_to(&peer, &server, until));
            });
            if let Err(error) = spawned {
                failed = Fault::of_io(Step::Thread, &error);
            }
        }
        drop(sender);
        while let Ok(outcome) = outcomes.recv_deadline(until) {
            match outcome {
                Ok(link) => return Ok(link),
                Err(fault) => failed = fault,
            }
        }
        Err(failed)
    }

    fn open_to(peer: &Peer, server: &Server, until: Instant) -> Result<Link, Fault> {
        let opened = match Link::greeted(peer, server, true, until) {
            Err(fault) if fault.is_closed() && server.tls.is_none() && speaks_tls(peer, until) => {
                return Err(Fault::Tls {
                    reason: TlsFailure::TlsServer,
                    message: format!("{} expects TLS; use rediss://", server.address),
                });
            }
            // A proxy may close the connection upon a command that it does not know.
            Err(fault) if fault.is_closed() => Link::greeted(peer, server, false, until),
            opened => opened,
        };
        opened.map_err(|fault| match fault {
            // With TLS 1.3 the client is done before the server has looked at its certificate.
            fault if fault.is_closed() && server.tls.is_some() => Fault::Tls {
                reason: TlsFailure::ClientCertificate,
                message: format!(
                    "{} closed the connection before its first reply",
                    server.address
                ),
            },
            fault => fault,
        })
    }

    fn greeted(peer: &Peer, server: &Server, greets: bool, until: Instant) -> Result<Link, Fault> {
        let mut link = Link {
            stream: Stream::connect(peer, server, until)?,
            parser: Parser::new(),
            hello: None,
            is_silent: !greets,
        };
        let login = &server.login;
        let mut commands = Vec::new();
        if let Some(password) = &login.password {
            let mut auth = redis::cmd("AUTH");
            auth.arg(&login.user).arg(password);
            commands.push(auth);
        }
        let of_login = commands.len();
        if greets {
            commands.push(command(&["HELLO", "2", "SETNAME", &name()]));
        }
        if login.database != 0 {
            commands.push(command(&["SELECT", &login.database.to_string()]));
        }
        let mut replies = link.exchange(&commands, Step::Connect, until)?.into_iter();
        for reply in replies.by_ref().take(of_login) {
            reply.map_err(of_login_refused)?;
        }
        if greets {
            match replies.next() {
                Some(Err(fault)) if fault.refuses_command() => {
                    let named = [command(&["CLIENT", "SETNAME", &name()])];
                    link.exchange(&named, Step::Connect, until)?;
                }
                Some(reply) => link.hello = Some(Hello::read(reply?)),
                None => {}
            }
        }
        replies.next().transpose()?;
        Ok(link)
    }

    /// Sends the commands in one write. Each has its reply, or the server's refusal. A fault ends
    /// the connection. Blocks for `within` at most.
    pub(super) fn ask(&mut self, commands: &[Cmd], within: Duration) -> Result<Vec<Reply>, Fault> {
        self.exchange(commands, Step::Reply, Instant::now() + within)
    }

    fn exchange(
        &mut self,
        commands: &[Cmd],
        step: Step,
        until: Instant,
    ) -> Result<Vec<Reply>, Fault> {
        self.stream.set_end(until);
        let mut bytes = Vec::new();
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        // A server that turns clients away says so, and closes, perhaps before any command comes.
        let sent = self
            .stream
            .write_all(&bytes)
            .and_then(|()| self.stream.flush());
        let mut replies = Vec::new();
        for _ in commands {
            match self.parser.parse_value(&mut self.stream) {
                Ok(reply) => replies.push(refusal(reply)),
                Err(error) => {
                    let refused = replies.into_iter().filter_map(Result::err);
                    let mut refused = refused.filter(|fault| !fault.refuses_command());
                    return Err(refused.next().unwrap_or_else(|| match sent {
                        Ok(()) => fault(step, &error),
                        Err(error) => Fault::of_io(step, &error),
                    }));
                }
            }
        }
        Ok(replies)
    }

    /// Awaits a message that no request asked for.
    pub(super) fn receive(&mut self, within: Duration) -> Result<Value, Fault> {
        self.stream.set_end(Instant::now() + within);
        let received = self.parser.parse_value(&mut self.stream);
        received.map_err(|error| fault(Step::Reply, &error))
    }
}

impl Hello {
    fn read(reply: Value) -> Hello {
        let fields: Vec<Value> = redis::from_redis_value(reply).unwrap_or_default();
        let text =
            |value: &Value| -> String { redis::from_redis_value_ref(value).unwrap_or_default() };
        let mut pairs = fields.chunks_exact(2);
        let version = pairs.find(|pair| text(&pair[0]) == "version");
        Hello {
            version: version.map(|pair| text(&pair[1])).unwrap_or_default(),
        }
    }

    /// Whether the server says that it is older than this version.
    pub(super) fn is_before(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.version.split('.').map(|number| number.parse().ok());
        let major: Option<u32> = numbers.next().flatten();
        major.is_some_and(|major| (major, numbers.next().flatten().unwrap_or(0)) < version)
    }
}

pub(super) fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// The name in the server's list of clients, as the library's connections have one.
fn name() -> String {
    format!("fairlock:-:{}:diagnosis", std::process::id())
}

fn fault(step: Step, error: &RedisError) -> Fault {
    #[cfg(feature = "tls")]
    if let Some(io) = std::error::Error::source(error).and_then(|e| e.downcast_ref()) {
        return super::tls::of_io(step, io);
    }
    Fault::of_reply(step, error)
}

/// The refusal of a login. A server that does not know AUTH repeats its arguments, so words that
/// servers are not known to send are left out.
fn of_login_refused(fault: Fault) -> Fault {
    const KNOWN: [&str; 6] = [
        "invalid username-password pair",
        "invalid password",
        "Client sent AUTH, but no password is set",
        "AUTH <password> called without any password configured",
        "wrong number of arguments for 'auth' command",
        "max number of clients",
    ];
    match fault {
        Fault::Refused { code, message }
            if !matches!(&*code, "LOADING" | "BUSY" | "MASTERDOWN")
                && !KNOWN.iter().any(|known| message.starts_with(known)) =>
        {
            let message = "its words are not shown, since they may repeat the password";
            Fault::Refused {
                code: match &*code {
                    "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => code,
                    _ => "ERR".to_owned(),
                },
                message: message.to_owned(),
            }
        }
        fault => fault,
    }
}
