//! A contended lock: how soon after the release the next holder runs, beside the least that such a
//! lock must do; how long the longest wait is; and whether equal threads get equal shares.
//!
//!     cargo bench --bench handoff
//!     cargo bench --bench handoff -- '8 waiters' 'four processes'
//!     FAIRLOCK_BENCH_URL=redis://host/ cargo bench --bench handoff
//!
//! Without the variable it starts a private redis-server on a port of this host. With n waiters,
//! n + 1 threads only wait for the lock, hold it for 1 ms and release it. With 2 waiters, one of
//! the four processes has no thread. Arguments choose the cases whose name begins or ends so.
//!
//! A *bare program* (bare.rs) takes turns with fairlock within each round: as many threads, spread
//! alike, hold it as long. It does the least that any lock with a queue on Redis must do, and
//! survives nothing. A hand-over is measured beside that program's, and so meets processors that
//! are as asleep and caches that are as cold.
//!
//! The longest wait is divided by n × (hold + hand-over), the time that a queue in perfect order
//! takes. Two figures show where the time of a hand-over goes: the call of the release, which ends
//! when its caller has the reply, and the time that the server spends in scripts per turn, the
//! enqueue included. Ratios are the median of all rounds (least..most).
//!
//! A round lasts until each thread has had enough turns to compare shares. Any window cuts off some
//! threads one turn earlier than others, and with few turns that matters. So a thread's share
//! counts whole turns: those from its first grant in the window to its first grant behind the
//! window, divided by all grants between the two. "Equal shares" is the smallest share divided by
//! the largest. A thread without a turn has a share of 0. A thread without a turn behind the window
//! is counted up to the last grant of all.

mod bare;
mod evaluate;
#[path = "../support/mod.rs"]
mod support;
mod turns;

use std::env;

use evaluate::{Seen, evaluate};
use support::figure::{Bound, Figure};
use support::{Rounds, bare_connection, round_trip, rounds, server, sized};
use turns::{HOLD, Layout, Subject, play, round};

const WAITERS: [usize; 4] = [2, 8, 64, 512];
/// With this many waiters there are fewer rounds, since each is long.
const LONG: usize = 512;
const LAYOUTS: [Layout; 3] = [
    Layout {
        title: "one manager",
        processes: 1,
        managers: 1,
    },
    Layout {
        title: "two managers",
        processes: 1,
        managers: 2,
    },
    Layout {
        title: "four processes",
        processes: 4,
        managers: 1,
    },
];

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "threads") {
        return play(&args[1..]);
    }
    let chosen: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let redis = server();
    println!(
        "handoff: one lock, held for {HOLD:?} a turn, on {}",
        redis.about
    );
    println!();
    print_head();
    let mut admin = bare_connection(&redis.url);
    for layout in &LAYOUTS {
        for waiters in WAITERS {
            let name = format!("{waiters} waiters, {}", layout.title);
            let is_chosen = |arg: &&String| name.starts_with(*arg) || name.ends_with(*arg);
            // The long ones take a minute, which is too much for a first look.
            if (waiters < LONG || sized(false, false, true))
                && (chosen.is_empty() || chosen.iter().any(is_chosen))
            {
                let case = Case::measure(&redis.url, layout, waiters, &mut admin);
                case.print(layout.title, waiters);
                case.note(&name, layout, waiters);
            }
        }
    }
}

/// All rounds of one case.
#[derive(Default)]
struct Case {
    /// A bare round trip before the round, µs.
    trip: Rounds,
    /// The hand-over beside that of the bare program.
    ratio: Rounds,
    fairlock: Side,
    bare: Side,
    longest: Rounds,
    equality: Rounds,
    turns: Option<(usize, usize)>,
}

/// One of the two that are compared; all in µs.
#[derive(Default)]
struct Side {
    handoff: Rounds,
    /// The call of the release.
    release: Rounds,
    /// The server's time in scripts, per turn.
    scripts: Rounds,
}

impl Case {
    fn measure(url: &str, layout: &Layout, waiters: usize, admin: &mut redis::Connection) -> Case {
        let mut case = Case::default();
        let full = if waiters < LONG { 7 } else { 3 };
        for number in 0..rounds(sized(1, 1, full)) {
            case.trip.add(round_trip(admin) as f64 / 1e3);
            let mut side = |subject| {
                let side = match subject {
                    Subject::Fairlock => &mut case.fairlock,
                    Subject::Bare => &mut case.bare,
                };
                side.round(url, subject, layout, waiters + 1, admin)
            };
            // The first of the two may find the machine in another state.
            let (fairlock, bare) = if number % 2 == 0 {
                let fairlock = side(Subject::Fairlock);
                (fairlock, side(Subject::Bare))
            } else {
                let bare = side(Subject::Bare);
                (side(Subject::Fairlock), bare)
            };
            let (Some(seen), Some(bare)) = (fairlock, bare) else {
                continue;
            };
            case.ratio.add(seen.handoff as f64 / bare.handoff as f64);
            case.longest.add(seen.longest);
            case.equality.add(seen.equality);
            let (fewest, most) = case.turns.unwrap_or(seen.turns);
            case.turns = Some((fewest.min(seen.turns.0), most.max(seen.turns.1)));
        }
        case
    }

    fn note(&self, name: &str, layout: &Layout, waiters: usize) {
        let figure = |title: &str, unit: &str| Figure::new(3, title, name, unit);
        let bound = if layout.processes == 1 { 1.3 } else { 1.4 };
        figure("Hand-over beside a bare program", "× the bare program's")
            .beside(format!("{:.0} µs", self.bare.handoff.median()))
            .bound(Bound::AtMost(bound))
            .note(&self.ratio);
        figure("Hand-over, p50", "µs")
            .beside(format!("{:.1} µs for a round trip", self.trip.median()))
            .note(&self.fairlock.handoff);
        figure("The release call of a hand-over", "µs")
            .beside(format!("{:.0} µs", self.bare.release.median()))
            .note(&self.fairlock.release);
        figure("The server's scripts in a turn", "µs")
            .beside(format!("{:.0} µs", self.bare.scripts.median()))
            .note(&self.fairlock.scripts);
        // With a few waiters, a pause of the machine takes most of what the bound leaves.
        let longest = if waiters < 8 {
            Bound::None
        } else {
            Bound::AtMost(1.3)
        };
        figure("Longest wait", "× n × (hold + hand-over)")
            .bound(longest)
            .note(&self.longest);
        figure("Shares of equal threads", "smallest by largest")
            .beside("1 if all are equal")
            .bound(Bound::AtLeast(0.95))
            .note(&self.equality);
    }

    fn print(&self, title: &str, waiters: usize) {
        let Case {
            ratio,
            fairlock,
            bare,
            longest,
            equality,
            ..
        } = self;
        let (fewest, most) = self.turns.unwrap_or_default();
        let both = |side: fn(&Side) -> &Rounds| {
            format!(
                "{:.1} / {:.1}",
                side(fairlock).median(),
                side(bare).median()
            )
        };
        println!(
            "  {title:<15}{waiters:>7}{:>8.1}   {ratio:<24}{:<18}{:<18}{:<18}{longest:<24}{equality:<24.3}{fewest}..{most}",
            self.trip.median(),
            both(|side| &side.handoff),
            both(|side| &side.release),
            both(|side| &side.scripts),
        );
    }
}

impl Side {
    fn round(
        &mut self,
        url: &str,
        subject: Subject,
        layout: &Layout,
        threads: usize,
        admin: &mut redis::Connection,
    ) -> Option<Seen> {
        let before = scripts(admin);
        let taken = round(url, subject, layout, threads);
        let after = scripts(admin);
        self.scripts
            .add((after - before) as f64 / taken.len() as f64);
        let seen = evaluate(taken, threads)?;
        self.handoff.add(seen.handoff as f64 / 1e3);
        self.release.add(seen.release as f64 / 1e3);
        Some(seen)
    }
}

fn print_head() {
    println!(
        "  {:<15}{:>7}{:>8}   {:<24}{:<18}{:<18}{:<18}{:<24}{:<24}turns a thread",
        "fairlock / bare",
        "waiters",
        "trip",
        "/ the bare program",
        "hand-over",
        "the release",
        "scripts, a turn",
        "longest wait",
        "equal shares",
    );
}

/// The time that the server has spent in scripts so far, in µs.
fn scripts(admin: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(admin)
        .expect("INFO is answered");
    let usec = |line: &str| {
        line.strip_prefix("cmdstat_eval")?
            .split_once("usec=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    };
    stats.lines().filter_map(usec).sum()
}
