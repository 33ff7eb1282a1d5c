//! `fairlock ls`.

mod prometheus;

use std::cmp::Reverse;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fairlock::inspect::{Kind, LockInfo, LockState, Party};

use crate::age;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::parties;
use crate::progress::Progress;
use crate::table::{Column, Table};
use crate::times;

/// Lists the locks that are held, awaited or lapsed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Only names that match: `*`, `?` and `[...]` as in Redis. Default: all.
    #[arg(default_value = "*", hide_default_value = true)]
    glob: String,
    /// Only names that somebody holds.
    #[arg(long)]
    held: bool,
    /// Only names with a holder whose lease ended without a release.
    #[arg(long)]
    lapsed: bool,
    /// Only names that somebody waits for whose process Redis still hears of.
    #[arg(long)]
    awaited: bool,
    /// Only names that one holder has held, or one waiter has awaited, for at least this time.
    #[arg(long, value_name = "DURATION", value_parser = crate::duration::parse)]
    older: Option<Duration>,
    /// The order of the rows. Names go from A to Z, `left` has the shortest time first, the others
    /// the largest number first.
    #[arg(long, value_name = "KEY")]
    sort: Option<Sort>,
    /// Turns the order around.
    #[arg(long, short)]
    reverse: bool,
    /// One JSON object per line. Without --sort, each appears as soon as it is found.
    #[arg(long)]
    json: bool,
    /// Gauges in Prometheus's text format, with a series for each name. All of them, or none.
    #[arg(long, conflicts_with_all = ["json", "sort", "reverse"])]
    prometheus: bool,
    /// With --prometheus: the sums over all names alone, whose number of series is always the same.
    #[arg(long, requires = "prometheus")]
    totals: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// By name
    Name,
    /// By the time that the oldest holder has held it
    Held,
    /// By the number of waiters
    Waiters,
    /// By the time that the oldest waiter has waited
    Waited,
    /// By the time that is left of the lease
    Left,
}

const EXAMPLES: &str = "\
Examples:
  fairlock ls                            # everything that is held, awaited or lapsed
  fairlock ls 'invoices:*' --awaited     # names that begin so and have a live queue
  fairlock ls --older 10m --sort held    # held or awaited for ten minutes or more
  fairlock ls --json | jq -r .name       # for programs
  fairlock ls --prometheus --older 1m    # for a collector that reads text files
  fairlock ls --prometheus --totals      # the same without a series for each name

Several filters: a name must pass all of them. A window too narrow for all columns
shows the most important ones. Into a pipe goes every column, and nothing is cut.";

const COLUMNS: [Column; 16] = [
    Column::text("NAME", 12, 0),
    Column::word("KIND", 10),
    Column::word("STATE", 1),
    Column::number("HELD", 2),
    Column::number("LEFT", 8),
    Column::number("WAITERS", 3),
    Column::number("WAITED", 7),
    Column::word("HEARD", 9),
    Column::text("LABEL", 6, 4),
    Column::text("HOST", 8, 5),
    Column::number("PID", 6),
    Column::text("THREAD", 6, 14),
    Column::word("AS", 11),
    Column::number("HOLDERS", 12),
    Column::number("FENCE", 15),
    Column::word("PREVIOUS", 13),
];

impl Ls {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        output::end_when_unread();
        let manager = connection.manager()?;
        let mut list = manager.list(&self.glob);
        let mut infos = Vec::new();
        let mut failed = None;
        let progress = Progress::start();
        loop {
            let next = list.next();
            for error in list.take_unreadable() {
                progress.make_room();
                crate::note::note_line!("fairlock: warning: {error}");
            }
            match next {
                None => break,
                Some(Err(error)) => {
                    failed = Some(error);
                    break;
                }
                Some(Ok(info)) if !self.admits(&info) => {}
                Some(Ok(info)) => {
                    progress.found();
                    if self.json && self.sort.is_none() {
                        progress.make_room();
                        output::json(&info)?;
                    } else {
                        infos.push(info);
                    }
                }
            }
        }
        drop(progress);
        self.sort(&mut infos);
        if self.prometheus {
            // A part of the names would look like a change of all numbers.
            return match failed {
                Some(error) => Err(error.into()),
                None if self.totals => prometheus::print_totals(&infos).map(|()| Exit::OK),
                None => prometheus::print(&infos).map(|()| Exit::OK),
            };
        }
        // The names that were found are printed, whatever became of the rest.
        if !infos.is_empty() || failed.is_none() {
            self.print(&infos)?;
        }
        failed.map_or(Ok(Exit::OK), |error| Err(error.into()))
    }

    fn admits(&self, info: &LockInfo) -> bool {
        (!self.held || info.state == LockState::Held)
            && (!self.lapsed || !info.lapsed.is_empty())
            && (!self.awaited || times::is_awaited(info))
            && self.older.is_none_or(|least| is_older(info, least))
    }

    fn sort(&self, infos: &mut [LockInfo]) {
        match self.sort.unwrap_or(Sort::Name) {
            Sort::Name => infos.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Held => infos.sort_by_key(|info| {
                let oldest = times::oldest_holder(info);
                Reverse(oldest.map(|holder| times::held(info, holder)))
            }),
            Sort::Waiters => infos.sort_by_key(|info| Reverse(info.waiters)),
            Sort::Waited => infos.sort_by_key(|info| Reverse(times::oldest_wait(info))),
            Sort::Left => infos.sort_by_key(|info| info.time_left),
        }
        if self.reverse {
            infos.reverse();
        }
    }

    fn print(&self, infos: &[LockInfo]) -> Result<(), Failure> {
        if self.json {
            return infos.iter().try_for_each(output::json);
        }
        let width = output::width();
        if infos.is_empty() && width.is_some() {
            crate::note::note_line!("nothing is held, awaited or lapsed here");
            return Ok(());
        }
        let mut table = Table::new(&COLUMNS);
        for info in infos {
            table.add(row(info));
        }
        output::table(&table, width)
    }
}

fn is_older(info: &LockInfo, least: Duration) -> bool {
    let held = parties::all_holders(info).map(|holder| times::held(info, holder));
    let waited = info.queue.iter().map(|waiter| times::waited(info, waiter));
    held.chain(waited).any(|age| age >= least)
}

/// The cells of [`COLUMNS`].
fn row(info: &LockInfo) -> Vec<String> {
    let holder = times::oldest_holder(info);
    let of = |show: &dyn Fn(&Party) -> String| holder.map(show).unwrap_or_default();
    let [label, host, pid, thread, access] = holder.map(parties::cells).unwrap_or_default();
    vec![
        info.name.to_string(),
        kind(&info.kind),
        match parties::is_kept(info) {
            true => "held/kept".to_owned(),
            false => info.state.to_string(),
        },
        of(&|holder| age::short(times::held(info, holder))),
        of(&|holder| left(info, holder)),
        info.waiters.to_string(),
        times::oldest_wait(info).map(age::short).unwrap_or_default(),
        times::last_heard(info)
            .map(times::heard)
            .unwrap_or_default(),
        label,
        host,
        pid,
        thread,
        access,
        match info.holders.len() {
            0 | 1 => String::new(),
            many => many.to_string(),
        },
        of(&|holder| parties::fence_of(info, holder).to_string()),
        info.previous_holder.to_string(),
    ]
}

/// `mutex`, `semaphore(3)`, `rw`: short, and without a space.
fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Mutex => "mutex".to_owned(),
        Kind::Semaphore { permits, .. } => format!("semaphore({permits})"),
        Kind::RwLock => "rw".to_owned(),
        other => other.to_string(),
    }
}

/// The time left, or with a minus the time since the lease of a lapsed holder ended.
fn left(info: &LockInfo, holder: &Party) -> String {
    match holder.lapsed_for {
        Some(ago) => format!("-{}", age::short(ago)),
        None => age::short(info.time_left),
    }
}
