//! How many turns each worker got, and whether the promises hold.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Outcome, mark, paint};
use crate::turn::Turn;

/// Prints the table and the checks. Returns an error if a check does not hold.
pub(crate) fn print(turns: &[Turn], entries: u64, failed: &[String]) -> Outcome {
    table(turns);
    let mut checks = vec![
        one_at_a_time(turns),
        Check {
            holds: entries == turns.len() as u64,
            claim: "nothing lost",
            evidence: format!(
                "{} turns, and the ledger counts {}",
                grouped(turns.len()),
                grouped(entries as usize)
            ),
        },
        first_come_first_served(turns),
        fences_rise(turns),
    ];
    if !failed.is_empty() {
        checks.push(Check {
            holds: false,
            claim: "workers ended well",
            evidence: failed.join("; "),
        });
    }
    println!();
    for check in &checks {
        println!(
            "  {} {:26}{}",
            mark(check.holds),
            check.claim,
            check.evidence
        );
    }
    let wrong = checks.iter().filter(|check| !check.holds).count();
    if wrong == 0 {
        Ok(())
    } else {
        Err(format!("{wrong} of {} claims do not hold", checks.len()).into())
    }
}

struct Check {
    holds: bool,
    claim: &'static str,
    evidence: String,
}

fn table(turns: &[Turn]) {
    const WIDTH: usize = 24;
    let mut workers: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for turn in turns {
        workers.entry(&turn.who).or_default().push(turn.wait());
    }
    let most = workers.values().map(Vec::len).max().unwrap_or(1);
    let head = format!(
        "{:<10}{:>6}  {:<WIDTH$}{:>14}{:>11}",
        "worker", "turns", "", "wait: median", "longest"
    );
    println!("  {}", paint("1", &head));
    let mut process = "";
    for (who, waits) in &mut workers {
        // An empty line between processes.
        let its_process = who.split('.').next().unwrap_or_default();
        if !process.is_empty() && its_process != process {
            println!();
        }
        process = its_process;
        let bar = "█".repeat((waits.len() * WIDTH + most / 2) / most);
        println!(
            "  {who:<10}{:>6}  {bar:<WIDTH$}{}",
            grouped(waits.len()),
            columns(waits)
        );
    }
    let mut all: Vec<Duration> = turns.iter().map(Turn::wait).collect();
    let line = format!(
        "{:<10}{:>6}  {:<WIDTH$}{}",
        "all",
        grouped(all.len()),
        "",
        columns(&mut all)
    );
    println!("  {}", paint("1", &line));
}

fn columns(waits: &mut [Duration]) -> String {
    waits.sort_unstable();
    let (Some(median), Some(longest)) = (waits.get(waits.len() / 2), waits.last()) else {
        return String::new();
    };
    format!("{:>14}{:>11}", millis(*median), millis(*longest))
}

/// Checks this in two ways without Redis: by the file that only one worker can create, and by the
/// clock.
fn one_at_a_time(turns: &[Turn]) -> Check {
    let mut turns: Vec<&Turn> = turns.iter().collect();
    turns.sort_unstable_by_key(|turn| turn.entered);
    let crowded = turns.iter().filter(|turn| !turn.alone).count();
    let overlaps = turns
        .windows(2)
        .filter(|pair| pair[1].entered < pair[0].left)
        .count();
    let mut gaps: Vec<u64> = turns
        .windows(2)
        .map(|pair| pair[1].entered.saturating_sub(pair[0].left))
        .collect();
    gaps.sort_unstable();
    let micros = |gap: Option<&u64>| gap.map_or(0, |ns| ns / 1000);
    let evidence = if crowded + overlaps == 0 {
        format!(
            "no two turns overlap; from one to the next {} µs, at least {} µs",
            micros(gaps.get(gaps.len() / 2)),
            micros(gaps.first())
        )
    } else {
        format!(
            "{} turns overlap by the clock, {} by the file that only one can create",
            grouped(overlaps),
            grouped(crowded)
        )
    };
    Check {
        holds: crowded + overlaps == 0,
        claim: "one at a time",
        evidence,
    }
}

/// If one worker was queued before another asked, Redis certainly queued them in that order. Then
/// the first must have the smaller fence.
fn first_come_first_served(turns: &[Turn]) -> Check {
    let queued = sorted(turns, |turn| turn.queued);
    let entered = sorted(turns, |turn| turn.entered);
    let before = |moments: &[u64], turn: &Turn| moments.partition_point(|at| *at < turn.asked);
    let together: usize = turns
        .iter()
        .map(|turn| before(&queued, turn) - before(&entered, turn))
        .sum();

    let mut turns: Vec<&Turn> = turns.iter().collect();
    turns.sort_unstable_by_key(|turn| turn.fence);
    let mut overtaken = 0;
    let mut first_queued_of_later = u64::MAX;
    for turn in turns.iter().rev() {
        if first_queued_of_later < turn.asked {
            overtaken += 1;
        }
        first_queued_of_later = first_queued_of_later.min(turn.queued);
    }
    let evidence = if overtaken == 0 {
        format!(
            "{} times one asked while another was queued, and never came first",
            grouped(together)
        )
    } else {
        format!(
            "{} turns came before one that had been queued earlier",
            grouped(overtaken)
        )
    };
    Check {
        holds: overtaken == 0,
        claim: "first come, first served",
        evidence,
    }
}

fn fences_rise(turns: &[Turn]) -> Check {
    let mut turns: Vec<&Turn> = turns.iter().collect();
    turns.sort_unstable_by_key(|turn| turn.entered);
    let fallen = turns
        .windows(2)
        .filter(|pair| pair[1].fence <= pair[0].fence)
        .count();
    let evidence = match fallen {
        0 => "each turn's is larger than all before it".to_owned(),
        n => format!("{n} turns had one that was not larger than the one before"),
    };
    Check {
        holds: fallen == 0,
        claim: "fences rise",
        evidence,
    }
}

fn sorted(turns: &[Turn], moment: impl Fn(&Turn) -> u64) -> Vec<u64> {
    let mut moments: Vec<u64> = turns.iter().map(moment).collect();
    moments.sort_unstable();
    moments
}

fn millis(d: Duration) -> String {
    format!("{:.1} ms", d.as_secs_f64() * 1e3)
}

/// The number with commas between thousands.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
