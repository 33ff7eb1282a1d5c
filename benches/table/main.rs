//! Makes the table and the charts from the figures of the benches; benches/run.sh calls it.
//!
//!     cargo bench --bench table -- RESULTS DIRECTORY
//!
//! RESULTS is the file that `FAIRLOCK_BENCH_RESULTS` named while the benches ran. `BENCHMARKS.md`,
//! `benchmarks.svg` and `benchmarks-peers.svg` (other crates alone) go into the directory.

mod chart;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::{env, thread};

use support::figure::{Bound, Figure, Line};
use support::{Rounds, is_bench, server};

const DEMANDS: [&str; 8] = [
    "Beside other crates",
    "A lock that nobody else wants",
    "Hand-over",
    "The length of the queue",
    "Waiting",
    "Holding many locks",
    "A slow link",
    "Permits",
];

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [results, directory] = &args[..] else {
        // `cargo test` passes no arguments, and then there is nothing to show.
        assert!(
            !is_bench() || args.is_empty(),
            "wants the file of the results and a directory"
        );
        return try_it();
    };
    let text = fs::read_to_string(results).expect("the file of the results");
    let lines: Vec<Line> = text
        .lines()
        .map(|line| Line::parse(line).expect("a line of the results"))
        .collect();
    let directory = Path::new(directory);
    fs::write(directory.join("BENCHMARKS.md"), page(&lines, &machine()))
        .expect("the directory can be written to");
    fs::write(directory.join("benchmarks.svg"), chart::draw(&lines))
        .expect("the directory can be written to");
    let peers: Vec<Line> = lines
        .into_iter()
        .filter(|line| line.figure.demand == 1)
        .collect();
    fs::write(directory.join("benchmarks-peers.svg"), chart::draw(&peers))
        .expect("the directory can be written to");
}

/// Whether what a bench would say comes out.
fn try_it() {
    let mut rounds = Rounds::default();
    [1.5, 1.25, 2.0]
        .into_iter()
        .for_each(|value| rounds.add(value));
    let cases = ["10 queued", "100 & more", "1000 queued"];
    let lines = cases.map(|case| {
        let figure = Figure::new(4, "Hand-over", case, "× with 10")
            .beside("1.0 µs")
            .bound(Bound::AtMost(1.4));
        let line = figure.line(&rounds).expect("there were rounds");
        Line::parse(&line.to_text()).expect("a line reads what it wrote")
    });
    let page = page(&lines, "one core");
    let chart = chart::draw(&lines);
    assert!(page.contains(
        "| Hand-over: 10 queued | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.4 | **missed** |"
    ));
    assert!(
        chart.contains("100 &amp; more") && chart.ends_with("</svg>\n"),
        "{chart}"
    );
}

/// A summary, chosen by hand from the last full run: change it together with the figures.
const IN_SHORT: &str = "
## In short

A lock and its release are two requests of one round trip each, as with any lock on Redis. Redis
runs on the same host, where the scripts' own time shows most, unless a link is named. The bounds
are those that fairlock was designed for.

| | measured | bound |
|---|---|---|
| one thread, lock + drop, beside the floor, at a round trip of 18 µs | 1.21 (1.21..1.24) | ≤ 1.0: **missed** |
| one thread, lock + unlock, beside the same | 1.48 (1.47..1.50) | ≤ 1.1: **missed** |
| lock + drop over a link of 1 ms | 0.53 (0.52..0.53) | ≤ 0.55 |
| lock + unlock over the same | 1.02 (1.02..1.03) | ≤ 1.1 |
| 32 threads on 32 names, 2 lanes: throughput beside the floor with 32 connections | 1.52 (1.31..1.80) | ≥ 1.3 |
| the same: p99 beside the floor | 1.21 (0.98..1.67) | ≤ 1.0: **missed** |
| the same: throughput beside a bare client on one multiplexed connection | 1.07 (0.97..1.14) | ≥ 1.0 |
| 8 threads on 8 names, 2 lanes: throughput beside the floor with 8 connections | 0.89 (0.78..1.29) | ≥ 1.1: **missed** |
| 64 threads over a link of 1 ms, 4 lanes: throughput beside a plain pool of 4 | 11.3 (9.5..51.5) | ≥ 5 |
| hand-over in a process, beside a bare program that does the least such a lock must do | 1.01 to 1.61 | ≤ 1.3: **missed** between two managers |
| hand-over between four processes, beside the same | 1.13 to 1.48 | ≤ 1.4: **missed** |
| longest wait of 64 and 512 waiters, beside n × (hold + hand-over) | 0.97 to 1.05 | ≤ 1.3 |
| longest wait of 8 waiters, beside the same | 1.21 to 1.42 | ≤ 1.3: **missed** in one of three |
| longest wait of 2 waiters, beside the same | 1.68 to 2.30 | ≤ 1.3: **missed** |
| shares of equal threads, smallest beside largest | 1.00 (1.00..1.00) | ≥ 0.95 |
| hand-over with 10,000 queued, beside 10 queued | 1.02 (0.99..1.06) | ≤ 1.5 |
| 1,000 threads that wait for one name: requests a second | 1.93 (1.93..2.00) | ≤ 3 |
| the same: connections beside the pool | 2 | ≤ 2 |
| 100,000 locks held with a ttl of 30 s: locks lost | 0 | 0 |
| the same: how late renewals are, p99.9 | 1.12 ms (0.74..1.78) | ≤ 3 s |
| the same: processor time of the process | 4 % of a core | ≤ 20 % |
| the same: memory per lock, in the process | 556 bytes | ≤ 1,024 |
| the same: memory per lock, in Redis | 355 bytes | ≤ 400 |

In plain times:

| | measured | floor |
|---|---|---|
| one thread, lock + unlock (1) | 115 µs | 97 µs |
| one thread, lock + drop (2) | 48 µs | 39 µs |
| one thread, lock + drop over a link of 1 ms (7) | 1.26 ms | 2.35 ms |
| one thread, lock + drop in memory, by the bench `uncontended` | 25 µs | |
| hand-over in a process, 2 to 512 waiters (3) | 112 to 166 µs | 18 µs |
| hand-over between four processes, 2 to 512 waiters (3) | 242 to 285 µs | 18 µs |

The same work with other Rust crates, with their own defaults, and set to poll as fast as they can:

![Beside other crates: lock and unlock by one thread; 8 threads on one name: acquisitions, longest wait, shares](benchmarks-peers.svg)
";

/// The text that explains the figures. Instructions do not depend on the machine; they were counted
/// by valgrind's callgrind on redis-server 7.0.15, as the difference of 2000 and 1000 requests.
const WHERE_THE_TIME_GOES: &str = "
## Where the time goes

The figures that miss their bound do so because a script costs more than the two commands of the
floor. This shows on a machine where a round trip is so short; over a link of 1 ms nothing of it is
left (7). In instructions of the server:

| | fairlock | what no script can do without |
|---|---|---|
| lock + drop | 133,000 | 32,000: the floor's `SET` and compare-and-delete |
| enqueue | 103,000 | |
| release that hands over | 142,000, with a message 156,000 | 117,000: a script with the same eight commands and constants in them |
| renewal | 82,000 | |

- *8 threads on 8 names* keep both cores busy. So only the processor time of a cycle counts. On the
  client most of it is system calls, as for the floor; on the server it is the scripts. 32 threads
  share more writes, and do better.
- *A hand-over* begins with the release's round trip, in which the server runs the script. (*The
  server's scripts in a turn* include the enqueue of the thread that just held the lock.)
  After a pause of 1 ms caches are cold: the same script takes the server 11 to 23 µs when it runs
  again and again. The rest of the time wakes the next holder: one thread in one manager, two
  between processes, where the message wakes the listener first. A script with nothing but the eight
  commands would save a sixth.
- *The longest wait of 2 waiters* is that of one in some 800 turns of 1.3 ms each. A pause of the
  machine of 1 ms takes most of what the bound leaves; a thread that only sleeps sees such pauses as
  well (6). With 64 waiters and more the bound is met.
";

fn page(lines: &[Line], machine: &str) -> String {
    let mut page = format!(
        "# Benchmarks

`benches/run.sh` made this page. Anyone can run it, in 20 minutes. It ran on {machine}.

![Charts of the figures below](benchmarks.svg)

A figure is the median of its rounds (least..most). Within a round, the things that are compared
take turns, so a disturbance of the machine affects both. The shares and ratios are worth more than
the times, which are this machine's.

The *floor* is what no lock on Redis can do without: a bare connection that sends `SET NX PX` and a
compare-and-delete script, or a bare round trip, or what is named beside the figure. A figure that
misses its bound says so. The head of each bench says exactly what it measures.
"
    );
    page += IN_SHORT;
    for (number, demand) in (1..).zip(DEMANDS) {
        let mut of_demand: Vec<&Line> = lines
            .iter()
            .filter(|line| line.figure.demand == number)
            .collect();
        if of_demand.is_empty() {
            continue;
        }
        // Those of one title together, and otherwise as they were measured.
        let titles: Vec<String> = of_demand
            .iter()
            .map(|line| line.figure.title.clone())
            .collect();
        of_demand.sort_by_key(|line| titles.iter().position(|title| *title == line.figure.title));
        page += &format!("\n## {number}. {demand}\n\n");
        page += "| figure | median (least..most) | rounds | beside | wanted | | bench |\n|---|---|---|---|---|---|---|\n";
        for line in of_demand {
            let Figure {
                title,
                case,
                unit,
                floor,
                bound,
                ..
            } = &line.figure;
            let digits = digits(line);
            let Line {
                bench,
                rounds,
                median,
                least,
                most,
                ..
            } = line;
            let wanted = match bound {
                Bound::None => "–".to_owned(),
                Bound::AtMost(most) => format!("≤ {most}"),
                Bound::AtLeast(least) => format!("≥ {least}"),
            };
            let verdict = match line.is_met() {
                None => "",
                Some(true) => "met",
                Some(false) => "**missed**",
            };
            let value = format!("{median:.digits$} ({least:.digits$}..{most:.digits$}) {unit}");
            page += &format!(
                "| {title}: {case} | {value} | {rounds} | {floor} | {wanted} | {verdict} | `{bench}` |\n"
            );
        }
    }
    page + WHERE_THE_TIME_GOES
}

/// After the point: as many as can mean something.
fn digits(line: &Line) -> usize {
    if line.most >= 100.0 {
        0
    } else if line.most >= 10.0 {
        1
    } else {
        2
    }
}

fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, |n| n.get());
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, model)| model);
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output();
    let commit = commit
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        .unwrap_or_default();
    // "a private redis 7.0.15 on port 43625 of this host"
    let about = server().about;
    let redis = about.split(" on port ").next().unwrap_or_default();
    format!(
        "{cores} cores ({}) with {redis}, commit {commit}",
        model.unwrap_or("of an unknown model")
    )
}
