//! Serves the metrics of a worker to Prometheus.
//!
//!     cargo run -p prometheus --features memory
//!     cargo run -p prometheus
//!     REDIS_URL=redis://127.0.0.1/ cargo run -p prometheus -- 0.0.0.0:9184
//!
//! A worker takes locks, and a small HTTP server answers `GET /metrics`. docs/METRICS.md has the
//! names, the alerts and a dashboard for Grafana.
//!
//! With an address, the program serves until you stop it. Without one, it serves itself on a free
//! port for a moment, shows what Prometheus would read, and ends.
//!
//! The program uses the Redis of `REDIS_URL`. Without that it uses an in-memory store, if it is
//! built with one, or else it starts a private redis-server. It exits with 0 if all checks hold,
//! with 1 if not, and with 2 if it has no store.

#[path = "../../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use fairlock::{LockManager, LockOptions};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::{Outcome, Store, check, own_name, run, until};
use tiny_http::{Header, Response, Server};

/// From the round trip to Redis up to the longest wait that you care about. Without buckets the
/// exporter makes summaries, which cannot be added over processes.
const BUCKETS: [f64; 14] = [
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0,
];

/// Copy this function. Call it before you build a manager: that looks the recorder up once.
fn install_recorder() -> Outcome<PrometheusHandle> {
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS)?;
    Ok(builder.install_recorder()?)
}

/// Copy this function. Answers each request until the server is unblocked.
fn serve(server: &Server, metrics: &PrometheusHandle) {
    for request in server.incoming_requests() {
        let response = if request.url() == "/metrics" {
            let plain = Header::from_bytes("Content-Type", "text/plain; version=0.0.4");
            let header = plain.expect("this is a header");
            Response::from_string(metrics.render()).with_header(header)
        } else {
            Response::from_string("see /metrics\n").with_status_code(404)
        };
        // The client may have gone away.
        let _ = request.respond(response);
    }
}

/// Copy this function. The exporter keeps each time that it gets until somebody reads or this is
/// called.
fn run_upkeep(metrics: PrometheusHandle) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(5));
            metrics.run_upkeep();
        }
    });
}

fn main() -> ExitCode {
    run(prometheus)
}

fn prometheus(store: &Store) -> Outcome {
    let address = env::args().nth(1);
    let metrics = install_recorder()?;
    run_upkeep(metrics.clone());
    let manager = LockManager::connect(store)?;

    let listen_at = address.as_deref().unwrap_or("127.0.0.1:0");
    let server = Arc::new(Server::http(listen_at)?);
    let at = server.server_addr().to_ip().ok_or("an IP address")?;
    println!("serving http://{at}/metrics");
    let serving = thread::spawn({
        let server = Arc::clone(&server);
        move || serve(&server, &metrics)
    });

    if address.is_some() {
        work_forever(&manager)?;
    }
    let shown = work_for_a_moment(&manager, at)?;
    server.unblock();
    serving.join().expect("the server does not panic");

    println!();
    println!("some of what Prometheus reads:");
    let interesting = |line: &&str| {
        line.starts_with("fairlock_") && !line.contains("_bucket") && !line.ends_with(" 0")
    };
    for line in shown.lines().filter(interesting) {
        println!("  {line}");
    }
    Ok(())
}

fn work_forever(manager: &LockManager) -> fairlock::Result<()> {
    let name = own_name("work");
    thread::scope(|scope| {
        let worker = |_| scope.spawn(|| work(manager, &name, usize::MAX));
        let workers: Vec<_> = (0..4).map(worker).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

/// Takes a lock again and again, and holds it for a moment.
fn work(manager: &LockManager, name: &str, times: usize) -> fairlock::Result<()> {
    for _ in 0..times {
        let _guard = manager.lock(name)?;
        thread::sleep(Duration::from_millis(3));
    }
    Ok(())
}

/// Every number moves for a reason that this function knows. Returns what the server shows.
fn work_for_a_moment(manager: &LockManager, at: SocketAddr) -> Outcome<String> {
    let [name, lost] = [own_name("work"), own_name("lost")];
    let worked: fairlock::Result<()> = thread::scope(|scope| {
        let workers = [(); 4].map(|()| scope.spawn(|| work(manager, &name, 5)));
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    });
    worked?;
    let held = manager.lock(&name)?;
    let impatient = manager.try_lock_for(&name, Duration::from_millis(5))?;
    check("a lock that is held is not granted", impatient.is_none())?;
    let limit = LockOptions::new().max_hold(Duration::from_millis(5));
    let limited = manager.with(limit).lock(&lost)?;
    until("a lock is lost by max_hold", || Ok(!limited.is_held()))?;
    until("the loss is counted", || {
        Ok(manager.stats().losses_max_hold == 1)
    })?;
    drop((held, limited));

    let shown = scrape(at)?;
    let total = |name: &str, label: &str| {
        let line = format!("{name}{{{label}}} ");
        let shown = shown.lines().find_map(|shown| shown.strip_prefix(&line));
        shown.and_then(|number| number.parse::<u64>().ok())
    };
    let acquisitions = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        total("fairlock_acquisitions_total", &label)
    };
    let granted = acquisitions("at_once").zip(acquisitions("after_wait"));
    check(
        "22 locks were granted, at once or after a wait",
        granted.map(|(at_once, after_wait)| at_once + after_wait) == Some(22),
    )?;
    check(
        "one request timed out",
        acquisitions("timed_out") == Some(1),
    )?;
    check(
        "one lock was lost by max_hold",
        total("fairlock_losses_total", "reason=\"max_hold\"") == Some(1),
    )?;
    check("no lock is held now", shown.contains("\nfairlock_held 0\n"))?;
    let buckets = "fairlock_wait_seconds_bucket{le=\"+Inf\"} 22";
    check("all waits are in buckets", shown.contains(buckets))?;
    println!();
    println!("the same from the manager itself:");
    println!("  {}", manager.stats());
    Ok(shown)
}

/// Reads the page as Prometheus does.
fn scrape(at: SocketAddr) -> Outcome<String> {
    let mut stream = TcpStream::connect(at)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let (head, body) = page.split_once("\r\n\r\n").ok_or("no page")?;
    check(
        "the server answers",
        head.starts_with("HTTP/1.") && head.contains(" 200 "),
    )?;
    Ok(body.to_owned())
}
