//! A proxy that understands commands, as those of cloud services do: it answers some by itself, and
//! passes the others on. Several servers of a cluster look like one behind it.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::scripted_server::{ScriptedReply, is, next_command, next_reply};

/// A proxy on a free port.
pub(crate) struct Gateway {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// The proxy's own answer to a command. `None`: it passes the command on.
type Rule = Box<dyn Fn(&[Vec<u8>]) -> Option<ScriptedReply> + Send + Sync>;

struct Shared {
    server: SocketAddr,
    rule: Rule,
    refused: Mutex<Vec<String>>,
    connections: Mutex<Vec<TcpStream>>,
    closing: AtomicBool,
}

/// A proxy's treatment of a command that it does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unknown {
    /// It answers this. `{}` is the command as the client wrote it.
    Says(&'static str),
    Closes,
}

impl Gateway {
    /// A proxy in front of the server at `addr`, which may be any node of a cluster.
    pub(crate) fn to(
        server: SocketAddr,
        rule: impl Fn(&[Vec<u8>]) -> Option<ScriptedReply> + Send + Sync + 'static,
    ) -> Gateway {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            server,
            rule: Box::new(rule),
            refused: Mutex::default(),
            connections: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Gateway {
            addr,
            shared,
            accepting: Some(accepting),
        }
    }

    /// A proxy that does not know these commands. A command has one word or two.
    pub(crate) fn without(
        server: SocketAddr,
        commands: &'static [&'static str],
        unknown: Unknown,
    ) -> Gateway {
        Gateway::to(server, move |words| {
            let is_one = |command: &&&str| {
                let mut parts = command.split(' ').enumerate();
                parts.all(|(i, part)| {
                    words
                        .get(i)
                        .is_some_and(|word| is(std::slice::from_ref(word), part))
                })
            };
            commands.iter().find(is_one)?;
            let name = String::from_utf8_lossy(&words[0]).into_owned();
            Some(match unknown {
                Unknown::Says(text) => ScriptedReply::error(&text.replace("{}", &name)),
                Unknown::Closes => ScriptedReply::Close,
            })
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The commands that it answered by itself, in upper case.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().unwrap().clone()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.shared.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().map_while(Result::ok) {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            let shared = Arc::clone(self);
            thread::spawn(move || {
                let _ = shared.serve(&client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    }

    fn keep(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        self.connections.lock().unwrap().push(stream.try_clone()?);
        Ok(())
    }

    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        self.keep(client)?;
        let mut servers = Servers {
            shared: self,
            first: self.server,
            open: HashMap::new(),
            before: Vec::new(),
        };
        let mut is_subscribed = false;
        let mut pending = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            while let Some((words, length)) = next_command(&pending) {
                let command: Vec<u8> = pending.drain(..length).collect();
                if words.is_empty() {
                    continue;
                }
                if let Some(own) = (self.rule)(&words) {
                    let name = String::from_utf8_lossy(&words[0]).to_uppercase();
                    self.refused.lock().unwrap().push(name);
                    match own {
                        ScriptedReply::Raw(bytes) => (&*client).write_all(&bytes)?,
                        ScriptedReply::RawThenClose(bytes) => {
                            return (&*client).write_all(&bytes);
                        }
                        ScriptedReply::Silent => {}
                        ScriptedReply::Close => return Ok(()),
                    }
                } else if is_subscribed {
                    servers.stream(self.server)?.write_all(&command)?;
                } else if is(&words, "SUBSCRIBE") {
                    is_subscribed = true;
                    let mut server = servers.stream(self.server)?.try_clone()?;
                    server.write_all(&command)?;
                    let mut to = client.try_clone()?;
                    thread::spawn(move || {
                        let _ = io::copy(&mut server, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                } else {
                    let reply = servers.ask(&words, &command)?;
                    (&*client).write_all(&reply)?;
                }
            }
            match (&*client).read(&mut buffer)? {
                0 => return Ok(()),
                n => pending.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// The connections to the servers for one client.
struct Servers<'a> {
    shared: &'a Shared,
    first: SocketAddr,
    open: HashMap<SocketAddr, TcpStream>,
    /// The login, which each server needs.
    before: Vec<Vec<u8>>,
}

impl Servers<'_> {
    /// The reply of the server that has the command's key.
    fn ask(&mut self, words: &[Vec<u8>], command: &[u8]) -> io::Result<Vec<u8>> {
        if is(words, "AUTH") {
            self.before.push(command.to_vec());
        }
        let mut server = self.first;
        loop {
            let reply = exchange(self.stream(server)?, command)?;
            let text = String::from_utf8_lossy(&reply);
            let Some(moved) = text.strip_prefix("-MOVED ") else {
                return Ok(reply);
            };
            let address = moved.split_whitespace().nth(1).unwrap_or_default();
            server = address.parse().map_err(io::Error::other)?;
        }
    }

    fn stream(&mut self, server: SocketAddr) -> io::Result<&mut TcpStream> {
        if !self.open.contains_key(&server) {
            let mut stream = TcpStream::connect(server)?;
            self.shared.keep(&stream)?;
            if server != self.first {
                for command in &self.before {
                    exchange(&mut stream, command)?;
                }
            }
            self.open.insert(server, stream);
        }
        Ok(self.open.get_mut(&server).expect("it was inserted"))
    }
}

fn exchange(server: &mut TcpStream, command: &[u8]) -> io::Result<Vec<u8>> {
    server.write_all(command)?;
    let mut reply = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while next_reply(&reply).is_none() {
        match server.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => reply.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(reply)
}
