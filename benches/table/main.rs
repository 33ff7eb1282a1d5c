//! Makes the table and the chart of what the benches noted; benches/run.sh calls it.
//!
//!     cargo bench --bench table -- RESULTS DIRECTORY
//!
//! RESULTS is the file that `FAIRLOCK_BENCH_RESULTS` named while they ran. `BENCHMARKS.md`, `benchmarks.svg` and
//! `benchmarks-peers.svg`, which is of other crates alone, go into the directory.

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
        // Of `cargo test`; a bench that is not told what to show has nothing to do.
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
    let (page, chart) = (page(&lines, "one core"), chart::draw(&lines));
    assert!(page.contains(
        "| Hand-over: 10 queued | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.4 | **missed** |"
    ));
    assert!(
        chart.contains("100 &amp; more") && chart.ends_with("</svg>\n"),
        "{chart}"
    );
}

/// What the figures do not say by themselves. Instructions do not depend on the machine; they were counted by valgrind's
/// callgrind on redis-server 7.0.15, as the difference of 2000 and 1000 requests.
const WHERE_THE_TIME_GOES: &str = "
## Where the time goes

What misses its bound does so by what a script costs more than the two commands of the floor, on a machine where a round
trip is so short that this shows; over a link of 1 ms nothing of it is left (7). In instructions of the server:

| | fairlock | what no script can do without |
|---|---|---|
| lock + drop | 133,000 | 32,000: the floor's `SET` and compare-and-delete |
| enqueue | 103,000 | |
| release that hands over | 142,000, with a message 156,000 | 117,000: a script with the same eight commands and constants in them |
| renewal | 82,000 | |

- *8 threads on 8 names* keep both cores busy with one call in each write and read, so the processor time of a cycle is all
  that counts: of the client's the most is system calls, as the floor's is, and of the server's the scripts. 32 threads on
  the same pool share writes, and do better.
- *A hand-over* begins with the release's round trip, in which the server runs the script (*of a turn in the server's
  scripts* has the enqueue of whoever just held it, too). After a pause of 1 ms caches are cold: the same script takes
  the server 11 to 23 µs when it is run again and again. Waking the next holder is the rest: one thread in one manager,
  two between processes, where the message wakes the listener first. A script with nothing but the eight commands would
  take a sixth off.
- *The longest wait of 2 waiters* is that of one in some 800 turns of 1.3 ms each: a pause of the machine of 1 ms, which
  a thread that only sleeps sees as well (6), is most of what the bound leaves. With 64 waiters and more it is met.
";

fn page(lines: &[Line], machine: &str) -> String {
    let mut page = format!(
        "# Benchmarks

Made by `benches/run.sh`, which anyone can run; on {machine}.

![Charts of the figures below](benchmarks.svg)

A figure is the median of its rounds (least..most). Within a round, what is compared takes turns, so what disturbs the
machine disturbs both; the shares and ratios are worth more than the times, which are this machine's. The floor is what
no lock on Redis can do without: a bare connection that does `SET NX PX` and a compare-and-delete script, or a bare round
trip, or what is said beside the figure. A figure that misses its bound says so. What exactly is measured stands at the
head of each bench.
"
    );
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
