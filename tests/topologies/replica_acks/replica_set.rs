//! A master and its replicas, each behind a cable that a test can cut.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use crate::support::{Server, until};

/// For what must happen, but whose time is not under test.
const SOON: Duration = Duration::from_secs(20);

/// Sends the data to a new replica at once. Otherwise the master waits 5 s for more replicas.
const AT_ONCE: [&str; 4] = [
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

pub(crate) struct ReplicaSet {
    pub(crate) master: Server,
    pub(crate) replicas: Vec<Replica>,
}

pub(crate) struct Replica {
    pub(crate) server: Server,
    pub(crate) cable: Cable,
}

impl ReplicaSet {
    /// A master and this many replicas, all of which have its data.
    pub(crate) fn start(replicas: usize) -> ReplicaSet {
        let master = Server::tcp_with(&AT_ONCE);
        let replicas = (0..replicas).map(|_| Replica::start(&master)).collect();
        let set = ReplicaSet { master, replicas };
        set.is_complete();
        set
    }

    pub(crate) fn url(&self) -> String {
        self.master.url()
    }

    /// Waits until all replicas have what the master has written.
    #[track_caller]
    fn is_complete(&self) {
        let wanted = self.replicas.len();
        until(SOON, "all replicas are there", || {
            // A write first: WAIT counts all replicas if its connection has written nothing.
            self.master.query::<()>(&["SET", "there", "1", "EX", "60"]);
            self.master
                .query::<usize>(&["WAIT", &wanted.to_string(), "100"])
                == wanted
        });
    }

    /// How many commands of this name the master has run.
    pub(crate) fn commands(&self, name: &str) -> u64 {
        self.master.calls(name)
    }
}

impl Replica {
    fn start(master: &Server) -> Replica {
        let cable = Cable::to(master.addr());
        let port = cable.addr.port().to_string();
        let mut arguments = vec!["--replicaof", "127.0.0.1", &port];
        arguments.extend(AT_ONCE);
        let server = Server::tcp_with(&arguments);
        Replica { server, cable }
    }

    /// It becomes a master, with the data that it has.
    pub(crate) fn promote(&self) {
        self.server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    }
}

/// Carries bytes between a replica and its master, whatever they mean. (The proxy of the other
/// tests reads replies. A replica's first copy of the data is none.)
pub(crate) struct Cable {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Bytes stay in the cable.
    is_held: AtomicBool,
    /// Bytes in the cable are lost, and so are all that come.
    is_cut: AtomicBool,
    delay_ms: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl Cable {
    fn to(server: SocketAddr) -> Cable {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let shared = Arc::<Shared>::default();
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut pumps = Vec::new();
                for near in listener.incoming().map_while(Result::ok) {
                    if shared.is_cut.load(Ordering::Acquire) {
                        break;
                    }
                    let Ok(far) = TcpStream::connect(server) else {
                        continue;
                    };
                    for (from, to) in [(&near, &far), (&far, &near)] {
                        let copy = |stream: &TcpStream| stream.try_clone().expect("a copy");
                        let (from, to, shared) = (copy(from), copy(to), Arc::clone(&shared));
                        pumps.push(thread::spawn(move || shared.pump(from, to)));
                    }
                    shared.streams.lock().unwrap().extend([near, far]);
                }
                for pump in pumps {
                    let _ = pump.join();
                }
            }
        });
        Cable {
            addr,
            shared,
            accepting: Some(accepting),
        }
    }

    /// From now on the replica receives nothing, but neither side notices.
    pub(crate) fn hold(&self) {
        self.shared.is_held.store(true, Ordering::Release);
    }

    /// Each piece takes this much longer.
    pub(crate) fn delay(&self, delay: Duration) {
        let delay = delay.as_millis() as u64;
        self.shared.delay_ms.store(delay, Ordering::Release);
    }

    /// Ends the connections, with all that is still in the cable.
    pub(crate) fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::Release);
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            // Time itself is under test: the cable is slow.
            sleep(Duration::from_millis(self.delay_ms.load(Ordering::Acquire)));
            while self.is_held.load(Ordering::Acquire) && !self.is_cut.load(Ordering::Acquire) {
                // A pause between two polls.
                sleep(Duration::from_millis(1));
            }
            if self.is_cut.load(Ordering::Acquire) || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.cut();
        // The thread that accepts looks whether the cable was cut.
        let _ = TcpStream::connect(self.addr);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
