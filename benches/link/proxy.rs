//! A link that takes its time: a proxy in a process of its own, which lets each chunk out a while
//! after it came in. A chunk that comes while another one waits goes out its own while later, as on
//! a wire.

#![allow(dead_code, reason = "no bench needs all of it")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{env, process, thread};

use redis::{ConnectionAddr, IntoConnectionInfo, parse_redis_url};

use crate::child::{ChildProcess, serve};
use crate::support::now;

/// From one end to the other, so that there and back takes 1 ms.
const DELAY: Duration = Duration::from_micros(500);

/// Ends when it is dropped.
pub(crate) struct Proxy {
    pub(crate) child: ChildProcess,
    /// The URL of the same Redis, over the link.
    pub(crate) url: String,
}

impl Proxy {
    pub(crate) fn start(url: &str) -> Proxy {
        let mut child = ChildProcess::spawn(url, &["proxy"]);
        let [port] = child.ask("port");
        let mut url = parse_redis_url(url).expect("a URL that names a Redis");
        url.set_host(Some("127.0.0.1"))
            .expect("a host can be another one");
        url.set_port(Some(port as u16)).expect("a host has a port");
        Proxy {
            child,
            url: url.into(),
        }
    }
}

/// In the child.
pub(crate) fn run() {
    let url = env::var("FAIRLOCK_BENCH_URL").expect("the parent names its Redis");
    let info = url
        .into_connection_info()
        .expect("a URL that names a Redis");
    let ConnectionAddr::Tcp(host, port) = info.addr().clone() else {
        panic!("the link wants a Redis on plain TCP")
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let own_port = listener
        .local_addr()
        .expect("a listener has an address")
        .port();
    let (sender, chunks) = channel();
    thread::spawn(move || deliver(&chunks));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect((host.as_str(), port)).expect("a Redis that answers");
            let [client, server] = [client, server].map(|stream| {
                stream.set_nodelay(true).expect("TCP knows it");
                Arc::new(stream)
            });
            for (from, to) in [(client.clone(), server.clone()), (server, client)] {
                let sender = sender.clone();
                thread::spawn(move || collect(&from, &to, &sender));
            }
        }
    });
    serve(|_| vec![own_port.into()]);
    process::exit(0);
}

struct Chunk {
    /// ns
    due: u64,
    to: Arc<TcpStream>,
    /// None at the end.
    bytes: Vec<u8>,
}

fn collect(mut from: &TcpStream, to: &Arc<TcpStream>, sender: &Sender<Chunk>) {
    let mut buffer = [0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).unwrap_or(0);
        let due = now() + DELAY.as_nanos() as u64;
        let chunk = Chunk {
            due,
            to: to.clone(),
            bytes: buffer[..length].to_vec(),
        };
        if sender.send(chunk).is_err() || length == 0 {
            return;
        }
    }
}

/// All wait equally long, so the one that came first is the next to go out, whichever connection it
/// is of.
fn deliver(chunks: &Receiver<Chunk>) {
    sleep_precisely();
    for Chunk { due, to, bytes } in chunks {
        thread::sleep(Duration::from_nanos(due.saturating_sub(now())));
        // A peer that has closed its side gets nothing any more.
        let _ = if bytes.is_empty() {
            to.shutdown(Shutdown::Write)
        } else {
            (&*to).write_all(&bytes)
        };
    }
}

/// By default Linux wakes a thread up to 50 µs late, to wake others at the same time.
fn sleep_precisely() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
