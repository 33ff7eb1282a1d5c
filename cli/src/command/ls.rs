//! `fairlock ls`.

mod prometheus;

use std::cmp::Reverse;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fairlock::inspect::{LockInfo, LockState, Party};
use log::LevelFilter;

use crate::age;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::note::note_line;
use crate::output;
use crate::parties;
use crate::table::Table;
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
  fairlock ls --prometheus --older 1m    # for a collector that reads text files

Several filters: a name must pass all of them. A narrow window shows the first columns.
Into a pipe goes every column, and nothing is cut.";

const COLUMNS: [&str; 11] = [
    "NAME", "STATE", ">HELD", ">WAITERS", ">WAITED", "HOST", ">PID", "LABEL", ">LEFT", "HEARD",
    "KIND",
];

impl Ls {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        output::end_when_unread();
        let manager = connection.manager()?;
        // The library warns of each name with no lock that this version knows.
        log::set_max_level(log::max_level().max(LevelFilter::Warn));
        let (mut list, mut infos) = (manager.list(&self.glob), Vec::new());
        let prints_at_once = self.json && self.sort.is_none();
        let searched = loop {
            match list.next() {
                None => break Ok(()),
                Some(Err(error)) => break Err(Failure::from(error)),
                Some(Ok(info)) if !self.admits(&info) => {}
                Some(Ok(info)) if prints_at_once => output::json(&info)?,
                Some(Ok(info)) => infos.push(info),
            }
        };
        self.sort(&mut infos);
        if self.prometheus {
            // A part of the names would look like a change of all numbers.
            if searched.is_ok() {
                output::line(prometheus::page(&infos, self.totals))?;
            }
        } else if !infos.is_empty() || searched.is_ok() {
            // The names that were found are printed, whatever became of the rest.
            self.print(&infos)?;
        }
        searched.map(|()| Exit::OK)
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
            note_line!("nothing is held, awaited or lapsed here");
            return Ok(());
        }
        let mut table = Table::new(&COLUMNS);
        infos.iter().for_each(|info| table.add(row(info)));
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
    let heard = times::last_heard(info).map(times::heard);
    vec![
        info.name.to_string(),
        match parties::is_kept(info) {
            true => "held/kept".to_owned(),
            false => info.state.to_string(),
        },
        of(&|holder| age::short(times::held(info, holder))),
        info.waiters.to_string(),
        times::oldest_wait(info).map(age::short).unwrap_or_default(),
        of(&|holder| holder.host.clone()),
        of(&|holder| holder.pid.to_string()),
        of(&|holder| holder.label.clone()),
        of(&|holder| left(info, holder)),
        heard.unwrap_or_default(),
        info.kind.to_string(),
    ]
}

/// The time left, or with a minus the time since the lease of a lapsed holder ended.
fn left(info: &LockInfo, holder: &Party) -> String {
    match holder.lapsed_for {
        Some(ago) => format!("-{}", age::short(ago)),
        None => age::short(info.time_left),
    }
}
