//! `fairlock show`.

use clap::Args;
use fairlock::{
    PreviousHolder,
    inspect::{LockInfo, LockState, Party},
};
use humantime::format_duration;

use crate::age;
use crate::connection::Connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::parties::{all_holders, cells, is_kept};
use crate::printable::printable;
use crate::table::{Column, Table};
use crate::times;

/// Shows a lock: its holders and its queue
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// The name of the lock.
    name: String,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fairlock show invoices:42
  fairlock show invoices:42 --json | jq '.queue[].host'

Exits with 1 if nobody holds the name or waits for it, and nobody's lease lapsed.";

const HOLDERS: [Column; 9] = [
    Column::text("LABEL", 6, 3),
    Column::text("HOST", 8, 0),
    Column::number("PID", 1),
    Column::text("THREAD", 6, 4),
    Column::word("AS", 2),
    Column::number("HELD", 2),
    Column::number("LAPSED", 3),
    Column::word("LEASE", 6),
    Column::number("FENCE", 5),
];

const QUEUE: [Column; 9] = [
    Column::number("#", 0),
    Column::text("LABEL", 6, 3),
    Column::text("HOST", 8, 0),
    Column::number("PID", 1),
    Column::text("THREAD", 6, 4),
    Column::word("FOR", 2),
    Column::number("WAITED", 2),
    Column::word("HEARD", 3),
    Column::word("LEASE", 6),
];

impl Show {
    pub(crate) fn run(&self, connection: &Connection) -> Result<Exit, Failure> {
        let manager = connection.manager()?;
        let Some(info) = manager.inspect(&self.name)? else {
            crate::note::note_line!("fairlock: {:?} is not in use", self.name);
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
    let kind = info.kind.to_string();
    output::line(format_args!("name      {}", printable(&info.name)))?;
    output::line(format_args!("kind      {}", printable(&kind)))?;
    output::line(format_args!("state     {}", state(info)))?;
    output::line(format_args!("fence     {}", info.fence))?;
    output::line(format_args!("previous  {}", previous(info)))?;
    output::line(format_args!(
        "seen at   {}, by the server's clock",
        times::moment(info.seen_at)
    ))?;
    if all_holders(info).next().is_some() {
        let (live, lapsed) = (info.holders.len(), info.lapsed.len());
        let and_lapsed = match lapsed {
            0 => String::new(),
            _ => format!(", and {lapsed} that lapsed"),
        };
        output::line(match (info.state, live.max(lapsed)) {
            (LockState::Held, _) if live == 1 => format!("\n1 holder{and_lapsed}"),
            (LockState::Held, _) => format!("\n{live} holders{and_lapsed}"),
            (LockState::Detached, _) => "\ndetached by".to_owned(),
            (_, 1) => "\nlast holder".to_owned(),
            (_, many) => format!("\nlast {many} holders"),
        })?;
        output::table(&holders(info), width)?;
    }
    if info.waiters > 0 {
        output::line(format_args!("\n{} waiting", info.waiters))?;
        output::table(&queue(info), width)?;
        let more = info.waiters.saturating_sub(info.queue.len() as u64);
        if more > 0 {
            output::line(format_args!("and {more} more"))?;
        }
    }
    Ok(())
}

/// The state, and what it means for others.
fn state(info: &LockInfo) -> String {
    let left = age::short(info.time_left);
    match info.state {
        LockState::Held if is_kept(info) => format!(
            "held or kept, {left} left unless it is renewed; its process lets go of it for others"
        ),
        LockState::Held => format!("held, {left} left unless it is renewed"),
        LockState::Detached => {
            format!("detached: no process holds it, and it can be attached for {left}")
        }
        LockState::Cooling => format!("cooling: released, but kept from others for {left}"),
        LockState::Lapsed => {
            let ago = info
                .lapsed
                .iter()
                .filter_map(|holder| holder.lapsed_for)
                .min();
            let ago = age::short(ago.unwrap_or_default());
            format!("lapsed: its lease ended {ago} ago without a release, and anybody can take it")
        }
        LockState::Free if !times::is_awaited(info) => {
            "free: no waiter is heard of, and the next try takes it".to_owned()
        }
        LockState::Free => "free: the first live waiter gets it".to_owned(),
        other => other.to_string(),
    }
}

/// How the last holder ended, and what that means for the next one.
fn previous(info: &LockInfo) -> String {
    let how = info.previous_holder;
    match how {
        PreviousHolder::Lapsed | PreviousHolder::Forced => {
            format!("{how}: the work of the last holder may be half done")
        }
        _ => how.to_string(),
    }
}

fn holders(info: &LockInfo) -> Table {
    let mut table = Table::new(&HOLDERS);
    for holder in all_holders(info) {
        let lapsed = |ago| format!("{} ago", age::short(ago));
        let more = [
            age::short(times::held(info, holder)),
            holder.lapsed_for.map(lapsed).unwrap_or_default(),
            lease(holder),
            holder
                .fence
                .map_or(String::new(), |fence| fence.to_string()),
        ];
        table.add([&cells(holder)[..], &more].concat());
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
        table.add([&[(at + 1).to_string()], &cells(waiter)[..], &more].concat());
    }
    table
}

/// `10s`, or `10s fixed` if no thread renews it.
fn lease(party: &Party) -> String {
    let fixed = if party.fixed_lease { " fixed" } else { "" };
    format!("{}{fixed}", format_duration(party.ttl))
}
