//! A RESP server whose replies a test scripts.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// A scripted RESP server on a free port. It passes each command to the handler and sends the
/// handler's reply.
pub(crate) struct ScriptedServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// One command: its name and arguments, as sent.
pub(crate) type CommandArgs = Vec<Vec<u8>>;

/// The reaction of the server to one command.
#[derive(Debug, Clone)]
pub(crate) enum ScriptedReply {
    /// Sends these bytes, which need not be RESP at all.
    Raw(Vec<u8>),
    /// Sends these bytes, and then closes the connection.
    RawThenClose(Vec<u8>),
    /// Sends nothing and keeps the connection open.
    Silent,
    /// Sends nothing and closes the connection.
    Close,
}

type Handler = Box<dyn Fn(&[Vec<u8>]) -> ScriptedReply + Send + Sync>;

struct Shared {
    handler: Handler,
    seen: Mutex<Vec<CommandArgs>>,
    streams: Mutex<Vec<TcpStream>>,
    closing: AtomicBool,
}

impl ScriptedServer {
    /// Starts the server; `handler` is called on one thread per connection.
    pub(crate) fn start(
        handler: impl Fn(&[Vec<u8>]) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            seen: Mutex::default(),
            streams: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let accepting = Some(thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        }));
        Self {
            addr,
            shared,
            accepting,
        }
    }

    /// The address that a client connects to.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// The address it listens on.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Every command so far, in order of arrival.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter()
            .map(|words| {
                words
                    .iter()
                    .map(|w| String::from_utf8_lossy(w).into())
                    .collect()
            })
            .collect()
    }

    /// The number of commands called `name` so far, in upper or lower case.
    pub(crate) fn count(&self, name: &str) -> usize {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|words| is(words, name)).count()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming().map_while(Result::ok) {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            let _ = stream.set_nodelay(true);
            let twin = stream.try_clone().expect("a socket can be shared");
            self.streams.lock().unwrap().push(twin);
            let shared = Arc::clone(self);
            thread::spawn(move || {
                let _ = shared.serve(&stream);
                // `streams` still holds a copy of the socket, so a drop alone would not close it.
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut pending = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            while let Some((words, length)) = next_command(&pending) {
                pending.drain(..length);
                if words.is_empty() {
                    continue;
                }
                if asks_for_rights(&words) {
                    stream.write_all(b"*0\r\n")?;
                    continue;
                }
                self.seen.lock().unwrap().push(words.clone());
                match (self.handler)(&words) {
                    ScriptedReply::Raw(bytes) => stream.write_all(&bytes)?,
                    ScriptedReply::RawThenClose(bytes) => return stream.write_all(&bytes),
                    ScriptedReply::Silent => {}
                    ScriptedReply::Close => return Ok(()),
                }
            }
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                n => pending.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

impl ScriptedReply {
    /// `+OK`.
    pub(crate) fn ok() -> Self {
        Self::simple("OK")
    }

    /// A status.
    pub(crate) fn simple(text: &str) -> Self {
        Self::Raw(format!("+{text}\r\n").into())
    }

    /// An error; `text` begins with its code, as in `LOADING not yet`.
    pub(crate) fn error(text: &str) -> Self {
        Self::Raw(format!("-{text}\r\n").into())
    }

    /// A string.
    pub(crate) fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let mut raw = format!("${}\r\n", bytes.len()).into_bytes();
        raw.extend_from_slice(bytes);
        raw.extend_from_slice(b"\r\n");
        Self::Raw(raw)
    }

    /// RESP2's nil.
    pub(crate) fn nil() -> Self {
        Self::Raw(b"$-1\r\n".to_vec())
    }

    /// A number.
    pub(crate) fn integer(n: i64) -> Self {
        Self::Raw(format!(":{n}\r\n").into())
    }

    /// An array. All its items must be [`Raw`](Self::Raw).
    pub(crate) fn array(items: impl IntoIterator<Item = Self>) -> Self {
        let mut body = Vec::new();
        let mut count = 0;
        for item in items {
            let Self::Raw(bytes) = item else {
                panic!("an array can hold only bytes, not {item:?}");
            };
            body.extend(bytes);
            count += 1;
        }
        let mut raw = format!("*{count}\r\n").into_bytes();
        raw.extend(body);
        Self::Raw(raw)
    }

    /// The answers of a healthy server to the commands around a script, and `+OK` to all others. A
    /// handler uses it as its default.
    pub(crate) fn polite(words: &[Vec<u8>]) -> Self {
        if is(words, "PING") {
            Self::simple("PONG")
        } else if is(words, "TIME") {
            let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
            Self::array([
                Self::bulk(now.as_secs().to_string()),
                Self::bulk(now.subsec_micros().to_string()),
            ])
        } else if is(words, "SUBSCRIBE") {
            Self::array([
                Self::bulk("subscribe"),
                Self::bulk(&words[1]),
                Self::integer(1),
            ])
        } else {
            Self::ok()
        }
    }
}

/// True if the command has this name, in upper or lower case.
pub(crate) fn is(words: &[Vec<u8>], name: &str) -> bool {
    words
        .first()
        .is_some_and(|w| w.eq_ignore_ascii_case(name.as_bytes()))
}

/// True for the script that asks what the user may not run. The server answers it by itself, and
/// does not show it to its handler.
fn asks_for_rights(words: &[Vec<u8>]) -> bool {
    is(words, "EVAL") && words[1] == include_bytes!("../../../src/script/user_rights.lua")
}

/// The first command in `bytes` and its length; `None` if it is incomplete. A line that is not an
/// array is parsed as an inline command.
pub(crate) fn next_command(bytes: &[u8]) -> Option<(CommandArgs, usize)> {
    let (line, mut at) = line(bytes, 0)?;
    let Some(count) = line.strip_prefix(b"*").and_then(number) else {
        let words = line
            .split(u8::is_ascii_whitespace)
            .filter(|w| !w.is_empty());
        return Some((words.map(<[u8]>::to_vec).collect(), at));
    };
    let mut words = Vec::with_capacity(count.min(1024));
    for _ in 0..count {
        let (header, start) = self::line(bytes, at)?;
        let length = header.strip_prefix(b"$").and_then(number)?;
        let end = start.checked_add(length)?;
        words.push(bytes.get(start..end)?.to_vec());
        at = end + 2;
        if bytes.len() < at {
            return None;
        }
    }
    Some((words, at))
}

/// The length of the first reply in `bytes`; `None` if it is incomplete.
pub(crate) fn next_reply(bytes: &[u8]) -> Option<usize> {
    let (header, mut at) = line(bytes, 0)?;
    let (kind, count) = header.split_first()?;
    let items = match kind {
        // A length of -1 is nil.
        b'$' | b'=' | b'!' => match number(count) {
            Some(length) => {
                at += length + 2;
                0
            }
            None => 0,
        },
        b'*' | b'~' | b'>' => number(count).unwrap_or(0),
        b'%' => 2 * number(count)?,
        _ => 0,
    };
    for _ in 0..items {
        at += next_reply(bytes.get(at..)?)?;
    }
    (at <= bytes.len()).then_some(at)
}

fn line(bytes: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(from..)?;
    let end = rest.iter().position(|b| *b == b'\n')?;
    let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
    Some((line, from + end + 1))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
