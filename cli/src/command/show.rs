//! `fairlock show`.

mod change;
mod follow;

use std::time::Duration;

use clap::Args;
use fairlock::{
    PreviousHolder,
    inspect::{LockInfo, LockState, Party},
};
use humantime::format_duration;

use crate::age;
use crate::connection::Connection;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::note::note_line;
use crate::output;
use crate::parties::{all_holders, cells, fence_of, is_kept};
use crate::printable::printable;
use crate::table::Table;
use crate::times;

/// Shows a lock: its holders and its queue, or each change of them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// The name of the lock.
    name: String,
    /// A line for each change, until a signal ends it or nobody reads on. The name may be free.
    #[arg(long)]
    follow: bool,
    /// With --follow: the time between two looks, 100ms to 1d. Changes between two looks that undo
    /// each other are not seen.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        requires = "follow"
    )]
    #[arg(value_parser = duration::interval)]
    interval: Duration,
    /// One JSON object, or with --follow one per line.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fairlock show invoices:42
  fairlock show invoices:42 --json | jq '.queue[].host'
  fairlock show invoices:42 --follow
  fairlock show invoices:42 --follow --interval 100ms --json | jq -r '[.at, .event] | @tsv'

Exits with 1 if nobody holds the name or waits for it, and nobody's lease lapsed.";

const HOLDERS: [&str; 9] = [
    "LABEL", "HOST", ">PID", "THREAD", "AS", ">HELD", ">LAPSED", "LEASE", ">FENCE",
];
const QUEUE: [&str; 9] = [
    ">#", "LABEL", "HOST", ">PID", "THREAD", "FOR", ">WAITED", "HEARD", "LEASE",
];

impl Show {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        if self.follow {
            output::end_when_unread();
        }
        let manager = connection.manager()?;
        if self.follow {
            return self.follow(&manager);
        }
        let Some(info) = manager.inspect(&self.name)? else {
            note_line!("fairlock: {:?} is not in use", self.name);
            return Ok(Exit::NO);
        };
        if self.json {
            output::json(&info)?;
        } else {
            print(&info)?;
        }
        Ok(Exit::OK)
    }
}

fn print(info: &LockInfo) -> Result<(), Failure> {
    let width = output::width();
    for (what, value) in [
        ("name", info.name.to_string()),
        ("kind", info.kind.to_string()),
        ("state", state(info)),
        ("fence", info.fence.to_string()),
        ("previous", previous(info)),
        ("seen at", times::moment(info.seen_at)),
    ] {
        output::line(format_args!("{what:<8}  {}", printable(&value)))?;
    }
    if all_holders(info).next().is_some() {
        output::line(match info.state {
            LockState::Held => "\nheld by",
            LockState::Detached => "\ndetached by",
            _ => "\nlast held by",
        })?;
        output::table(&holders(info), width)?;
    }
    if info.waiters > 0 {
        output::line(format_args!("\n{} waiting", info.waiters))?;
        output::table(&queue(info), width)?;
    }
    Ok(())
}

/// The state, and what it means for others.
fn state(info: &LockInfo) -> String {
    let left = age::short(info.time_left);
    match info.state {
        LockState::Held if is_kept(info) => {
            format!("held or kept, {left} left unless it is renewed")
        }
        LockState::Held => format!("held, {left} left unless it is renewed"),
        LockState::Detached => format!("detached: no process holds it; attach it within {left}"),
        LockState::Cooling => format!("cooling: released, but kept from others for {left}"),
        LockState::Lapsed => "lapsed: its lease ended without a release".to_owned(),
        _ => "free: the first live waiter gets it, or the next try".to_owned(),
    }
}

/// How the last holder ended, and what that means for the next one.
fn previous(info: &LockInfo) -> String {
    let mut how = info.previous_holder.to_string();
    if let PreviousHolder::Lapsed | PreviousHolder::Forced = info.previous_holder {
        how += ": the work of the last holder may be half done";
    }
    how
}

fn holders(info: &LockInfo) -> Table {
    let mut table = Table::new(&HOLDERS);
    for holder in all_holders(info) {
        let lapsed = |ago| format!("{} ago", age::short(ago));
        let more = [
            age::short(times::held(info, holder)),
            holder.lapsed_for.map(lapsed).unwrap_or_default(),
            lease(holder),
            fence_of(info, holder).to_string(),
        ];
        table.add([&cells(&info.kind, holder)[..], &more].concat());
    }
    table
}

fn queue(info: &LockInfo) -> Table {
    let mut table = Table::new(&QUEUE);
    for (at, waiter) in info.queue.iter().enumerate() {
        let more = [
            age::short(times::waited(info, waiter)),
            times::heard(waiter),
            lease(waiter),
        ];
        table.add(
            [
                &[(at + 1).to_string()],
                &cells(&info.kind, waiter)[..],
                &more,
            ]
            .concat(),
        );
    }
    table
}

/// `10s`, or `10s fixed` if no thread renews it.
fn lease(party: &Party) -> String {
    let fixed = if party.fixed_lease { " fixed" } else { "" };
    format!("{}{fixed}", format_duration(party.ttl))
}
