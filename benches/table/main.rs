//! Makes the tables and the charts from the figures of the benches; benches/run.sh calls it.
//!
//!     cargo bench --bench table -- RESULTS                       prints the tables in short
//!     cargo bench --bench table -- RESULTS DIRECTORY             writes all of them
//!     cargo bench --bench table -- RESULTS DIRECTORY README.md   and the table of the README
//!
//! RESULTS is the file that `FAIRLOCK_BENCH_RESULTS` named while the benches ran. `BENCHMARKS.md`,
//! `benchmarks.svg` and `benchmarks-peers.svg` (other clients alone) go into the directory. The
//! README's table stands between two comments.

mod chart;
mod peers;
mod short;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::{env, thread};

use support::figure::{Bound, Figure, Line};
use support::{Rounds, is_bench, server};

/// The first has figures of several clients; in the others all figures are fairlock's.
const SECTIONS: [&str; 10] = [
    "Beside other clients",
    "A lock that nobody else wants",
    "Hand-over",
    "The length of the queue",
    "Waiting",
    "Holding many locks",
    "A slow link",
    "Permits",
    "Local hand-overs",
    "Kept locks",
];

/// The text that explains the figures. Instructions do not depend on the machine; they were counted
/// by valgrind's callgrind on redis-server 7.0.15, as the difference of 2000 and 1000 requests.
const WHERE_THE_TIME_GOES: &str = include_str!("where_the_time_goes.md");

/// Figures that no bench of this folder makes.
const MEASURED_APART: &str = include_str!("measured_apart.md");

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let Some((results, targets)) = args.split_first() else {
        // `cargo test` and `cargo bench` pass no arguments, and then there is nothing to show.
        return try_it();
    };
    let text = fs::read_to_string(results).expect("the file of the results");
    let lines: Vec<Line> = text
        .lines()
        .map(|line| Line::parse(line).expect("a line of the results"))
        .collect();
    match targets {
        [] => println!("{}\n{}", peers::table(&lines), short::table(&lines)),
        [directory, readme @ ..] => {
            write_all(&lines, Path::new(directory));
            readme.iter().for_each(|file| peers::renew(file, &lines));
        }
    }
}

fn write_all(lines: &[Line], directory: &Path) {
    let write = |file: &str, text: String| {
        fs::write(directory.join(file), text).expect("the directory can be written to");
    };
    write("BENCHMARKS.md", page(lines, &machine()));
    write("benchmarks.svg", chart::draw(lines));
    let of_peers = lines.iter().filter(|line| line.figure.section == 1);
    write("benchmarks-peers.svg", chart::draw(of_peers));
}

fn page(lines: &[Line], machine: &str) -> String {
    let mut page = format!(
        "# Benchmarks

`benches/run.sh` made this page. Anyone can run it, in 40 minutes. `benches/run.sh --quick` takes less
than three. It ran on {machine}.

![Charts of the figures below](benchmarks.svg)

A figure is the median of its rounds (least..most). Within a round, the things that are compared
take turns, so a disturbance of the machine affects both. The shares and ratios are worth more than
the times, which are this machine's.

The *floor* is what no lock on Redis can do without: a bare connection that sends `SET NX PX` and a
compare-and-delete script, or what is named beside the figure. A figure that misses its bound says
so. The head of each bench says exactly what it measures.

*Cores*: a round trip takes three times as long if client and server run on two cores, because each
has to wake the other core. Left alone, the scheduler changes its choice at any moment. So the
benches of single round trips pin both ends: first on *one* core, then on *two*. The others run on
*any*: the scheduler chooses.

## In short

A lock and its release are two requests of one round trip each, as with any lock on Redis. Redis
runs on the same host, where the scripts' own time shows most, unless a link is named.

{}
The bounds are those that fairlock was designed for. For several cases, the range of their medians is
shown, and the one that is farthest from its bound.

{}",
        peers::table(lines),
        short::table(lines)
    );
    let numbers: BTreeSet<u8> = lines.iter().map(|line| line.figure.section).collect();
    for number in numbers {
        let mut section: Vec<&Line> = lines
            .iter()
            .filter(|line| line.figure.section == number)
            .collect();
        let title = SECTIONS.get(usize::from(number) - 1).unwrap_or(&"More");
        // Those of one title together, and otherwise as they were measured.
        let titles: Vec<String> = section
            .iter()
            .map(|line| line.figure.title.clone())
            .collect();
        section.sort_by_key(|line| titles.iter().position(|title| *title == line.figure.title));
        page += &format!("\n## {number}. {title}\n\n");
        page += &if number == 1 {
            let chart = "![The figures beside other clients as bars](benchmarks-peers.svg)";
            let left_out = peers::left_out(&section);
            format!("{left_out}\n{chart}\n\n{}", peers::parts(&section))
        } else {
            rows(&section)
        };
    }
    page + "\n" + MEASURED_APART + WHERE_THE_TIME_GOES
}

/// A row for each figure.
fn rows(lines: &[&Line]) -> String {
    let mut rows =
        "| figure | cores | median (least..most) | rounds | beside | wanted | | bench |\n"
            .to_owned();
    rows += "|---|---|---|---|---|---|---|---|\n";
    for line in lines {
        let Line {
            bench,
            figure,
            cores,
            rounds,
            ..
        } = line;
        let Figure {
            title,
            case,
            unit,
            floor,
            bound,
            ..
        } = figure;
        let (value, verdict) = (spread(line), verdict(line.is_met()));
        rows += &format!(
            "| {title}: {case} | {cores} | {value} {unit} | {rounds} | {floor} | {bound} | {verdict} | `{bench}` |\n"
        );
    }
    rows
}

fn verdict(is_met: Option<bool>) -> &'static str {
    match is_met {
        None => "",
        Some(true) => "met",
        Some(false) => "**missed**",
    }
}

/// "1.50 (1.25..2.00)", or "1.50" of a single round.
fn spread(line: &Line) -> String {
    let Line {
        median,
        least,
        most,
        ..
    } = line;
    let digits = digits(line);
    if line.rounds == 1 {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({least:.digits$}..{most:.digits$})")
}

/// After the point: as many as can mean something.
fn digits(line: &Line) -> usize {
    let numbers = [line.least, line.median, line.most];
    let is_count = !line.figure.unit.starts_with('×') && numbers.iter().all(|n| n.fract() == 0.0);
    if is_count || line.most >= 100.0 {
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

/// Whether what a bench would say comes out.
fn try_it() {
    assert!(!is_bench() || env::args().len() <= 2, "wants the results");
    let mut rounds = Rounds::default();
    [1.5, 1.25, 2.0]
        .into_iter()
        .for_each(|value| rounds.add(value));
    let line = |figure: Figure| {
        let line = figure.line(&rounds).expect("there were rounds");
        Line::parse(&line.to_text()).expect("a line reads what it wrote")
    };
    let hand_over = |case, most| {
        line(
            Figure::new(4, "Hand-over", case, "× with 10")
                .beside("1.0 µs")
                .bound(Bound::AtMost(most)),
        )
    };
    let mut lines = vec![
        hand_over("10 queued", 1.4),
        hand_over("100 & more", 1.6),
        hand_over("1000 queued", 1.6),
    ];
    lines.extend(["fairlock, drop", "rslock 0.10"].map(|case| {
        let title = "32 threads on as many names: locks";
        line(Figure::new(1, title, case, "a second"))
    }));
    let page = page(&lines, "one core");
    for row in [
        "| Hand-over: 10 queued | any | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.4 | **missed** |",
        "| Hand-over: 100 & more | any | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.6 | met |",
        "|rslock 0.10|1.5|",
        "Without clients for Java, which did not run.",
    ] {
        assert!(page.contains(row), "{row} is missing in\n{page}");
    }
    let chart = chart::draw(&lines);
    assert!(
        chart.contains("100 &amp; more") && chart.ends_with("</svg>\n"),
        "{chart}"
    );
}
