//! Makes the pages and the charts from the results of the benches; benches/run.sh calls it.
//!
//!     cargo bench --bench table -- head             prints the first line of results
//!     cargo bench --bench table -- RESULTS          prints the tables in short
//!     cargo bench --bench table -- RESULTS ROOT     writes all files below this directory
//!
//! RESULTS is the file that `FAIRLOCK_BENCH_RESULTS` named while the benches ran. The files are
//! `docs/BENCHMARKS.md`, `docs/benchmarks.svg`, `docs/benchmarks-peers.svg` (other clients alone),
//! `benches/RESULTS.md`, `benches/results.tsv`, and the table of `README.md`, if there is one.
//!
//! Without arguments it checks that the repository has these files as it would write them.

mod chart;
mod kept;
mod page;
mod peers;
mod raw;
mod results;
mod short;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::{env, fs};

use results::Results;
use support::Rounds;
use support::figure::{Bound, Figure, Line};

/// Below the root.
const RESULTS: &str = "benches/results.tsv";

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // `cargo test` and `cargo bench` pass no arguments.
        [] => {
            try_it();
            check(Path::new(env!("CARGO_MANIFEST_DIR")));
        }
        ["head"] => println!("{}", results::head()),
        [results] => {
            let Results { lines, .. } = read(results);
            let tables = [peers::table, kept::table, short::table].map(|table| table(&lines));
            println!("{}", tables.join("\n"));
        }
        [results, root] => write(&read(results), Path::new(root)),
        _ => panic!("wants the results and where to write"),
    }
}

fn read(results: impl AsRef<Path>) -> Results {
    let text = fs::read_to_string(results).expect("the file of the results");
    Results::parse(&text)
}

fn write(results: &Results, root: &Path) {
    for (path, text) in files(results, root) {
        let path = root.join(path);
        let directory = path.parent().expect("a directory below the root");
        fs::create_dir_all(directory).expect("a place for the file");
        fs::write(path, text).expect("the file can be written to");
    }
}

/// All that is made of these results, below this root.
fn files(results: &Results, root: &Path) -> Vec<(PathBuf, String)> {
    let lines = &results.lines;
    let of_peers = lines.iter().filter(|line| line.figure.section == 1);
    let mut files = vec![
        ("docs/BENCHMARKS.md".into(), page::page(results)),
        ("docs/benchmarks.svg".into(), chart::draw(lines)),
        ("docs/benchmarks-peers.svg".into(), chart::draw(of_peers)),
        ("benches/RESULTS.md".into(), raw::page(results)),
        (RESULTS.into(), results.to_text()),
    ];
    if let Ok(readme) = fs::read_to_string(root.join("README.md")) {
        files.push(("README.md".into(), peers::renew(&readme, lines)));
    }
    files
}

/// The pages are those of the results, also after a change of their texts or of this program.
fn check(root: &Path) {
    for (path, text) in files(&read(root.join(RESULTS)), root) {
        let present = fs::read_to_string(root.join(&path)).unwrap_or_default();
        assert!(
            present == text,
            "{} is old: run benches/run.sh --from {RESULTS}",
            path.display()
        );
    }
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

/// Whether what a bench would say comes out.
fn try_it() {
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
    let (title, case) = ("Lock + drop of a kept name, p50", "1 thread, by handle");
    lines.insert(0, line(Figure::new(10, title, case, "ns")));
    // Measured in two pieces: what is measured twice counts as it was measured last.
    let text = |line: &Line| line.to_text() + "\n";
    let head = "# 2 cores, commit abc\n";
    let again = lines.pop().expect("a line");
    let mut early = Line::parse(&again.to_text()).expect("a line reads what it wrote");
    early.median = 1.75;
    let pieces = [&early]
        .into_iter()
        .chain(&lines)
        .map(text)
        .chain([head.to_owned(), text(&again)]);
    let results = Results::parse(&(head.to_owned() + &pieces.collect::<String>()));
    let [page, raw] = [page::page(&results), raw::page(&results)];
    for (page, wanted) in [
        (&page, "made on 2 cores, commit abc.\n"),
        (&page, "|rslock 0.10|1.5|"),
        (&page, "Without clients for Java, which did not run."),
        (&page, "It meets 2 of 3."),
        (
            &page,
            "|4|Hand-over (10 queued)|1.50 × with 10|≤ 1.4|**missed**|",
        ),
        (&page, "|4|Hand-over (2 cases)|1.50 × with 10|≤ 1.6|met|"),
        (&page, "|lock + drop, one thread, by handle|1.50 ns|"),
        (
            &raw,
            "| Hand-over: 10 queued | any | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.4 | **missed** |",
        ),
        (
            &raw,
            "| Hand-over: 100 & more | any | 1.50 (1.25..2.00) × with 10 | 3 | 1.0 µs | ≤ 1.6 | met |",
        ),
    ] {
        assert!(page.contains(wanted), "{wanted} is missing in\n{page}");
    }
    let chart = chart::draw(&results.lines);
    assert!(
        chart.contains("100 &amp; more") && chart.ends_with("</svg>\n"),
        "{chart}"
    );
}
