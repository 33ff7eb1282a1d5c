//! One name: its holders, and its queue in order.

use std::time::Instant;

use fairlock::{PreviousHolder, inspect::LockState};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::table::{grown, owner, time_left};
use super::{Meaning, Setting, left, lines, scrolled};
use crate::age;
use crate::command::top::seen::{Opened, Owner};
use crate::command::top::view::View;

pub(super) fn draw(
    frame: &mut Frame,
    area: Rect,
    view: &mut View,
    setting: &Setting,
    now: Instant,
) {
    let Some(name) = &mut view.opened else {
        return;
    };
    let style = |meaning| setting.palette.style(meaning);
    let opened = match &name.seen {
        Ok(Some(opened)) => opened,
        nothing => {
            let what = match nothing {
                Err(why) => why,
                Ok(_) => "free: its last holder released it",
            };
            let line = (format!("{:?}: {what}", name.name), style(Meaning::Usual));
            return lines(frame, area, [line]);
        }
    };
    let rows = rows(opened, now);
    let page = usize::from(area.height.saturating_sub(2)).max(1);
    let last = (opened.holders.len() + opened.queue.len()).saturating_sub(1);
    name.selected = name.selected.min(last);
    let selected = rows.iter().position(|row| row.party == Some(name.selected));
    let selected = selected.unwrap_or_default();
    // The heading above the first holder stays in sight.
    let wanted = if name.selected == 0 { 0 } else { selected };
    name.first = scrolled(name.first.min(wanted), selected, page, rows.len());
    view.page = page;
    let title = (title(opened, now), style(Meaning::Title));
    let visible = rows.into_iter().enumerate().skip(name.first).take(page);
    let visible = visible.map(|(at, row)| {
        if at == selected && row.party.is_some() {
            // The mark of the cursor is as wide as the window.
            let text = left(&row.text, usize::from(area.width));
            return (text, style(Meaning::Selected));
        }
        (row.text, style(row.meaning))
    });
    let head = [title, (String::new(), Style::new())];
    lines(frame, area, head.into_iter().chain(visible));
}

struct Row {
    text: String,
    meaning: Meaning,
    /// Which holder or waiter it is, counted from the first holder on.
    party: Option<usize>,
}

fn title(opened: &Opened, now: Instant) -> String {
    let seen = &opened.seen;
    format!(
        "{:?}: {}, {}, fence {}, {} left, {} waiting",
        seen.name,
        seen.kind,
        seen.state,
        seen.fence,
        time_left(seen, now),
        seen.waiters
    )
}

fn rows(opened: &Opened, now: Instant) -> Vec<Row> {
    let heading = |text: &str| Row {
        text: text.to_owned(),
        meaning: Meaning::Title,
        party: None,
    };
    let holders = opened.holders.len();
    let mut rows = vec![heading("HOLDERS")];
    rows.extend(opened.holders.iter().enumerate().map(|(at, holder)| Row {
        text: format!("  {}", held(holder, opened, now)),
        meaning: match holder.lapsed_for {
            Some(_) => Meaning::Alarm,
            None => Meaning::Usual,
        },
        party: Some(at),
    }));
    if holders == 0 {
        rows.push(faint("  nobody"));
    }
    let is_held = opened.seen.state == LockState::Held;
    match opened.previous {
        // Otherwise it is the holder above.
        _ if !is_held => {}
        PreviousHolder::Lapsed => rows.push(faint("  the holder before lapsed")),
        PreviousHolder::Forced => rows.push(faint("  the holder before lost it by force")),
        // As usual, or nothing is known.
        _ => {}
    }
    rows.push(heading("QUEUE"));
    rows.extend((0..opened.queue.len()).map(|at| waiting(opened, at, now)));
    let hidden = opened
        .seen
        .waiters
        .saturating_sub(opened.queue.len() as u64);
    match (opened.queue.is_empty(), hidden) {
        (_, 1..) => rows.push(faint(&format!("  and {hidden} more"))),
        (true, 0) => rows.push(faint("  nobody waits")),
        (false, 0) => {}
    }
    rows
}

/// The waiter at this place of the queue.
fn waiting(opened: &Opened, at: usize, now: Instant) -> Row {
    let waiter = &opened.queue[at];
    let since = grown(Some(waiter.age), &opened.seen, now);
    let text = format!("{:>5}. {}, waits for {since}", at + 1, described(waiter));
    let (text, meaning) = match &waiter.silent {
        Some(heard) => (format!("{text}, {heard}"), Meaning::Alarm),
        None => (text, Meaning::Usual),
    };
    Row {
        text,
        meaning,
        party: Some(opened.holders.len() + at),
    }
}

fn faint(text: &str) -> Row {
    Row {
        text: text.to_owned(),
        meaning: Meaning::Faint,
        party: None,
    }
}

fn held(holder: &Owner, opened: &Opened, now: Instant) -> String {
    let time = match holder.lapsed_for {
        Some(ago) => {
            let since = now.saturating_duration_since(opened.seen.at);
            format!("its lease ended {} ago", age::short(ago + since))
        }
        None => {
            let held = grown(Some(holder.age), &opened.seen, now);
            format!("{} for {held}", held_or_kept(holder))
        }
    };
    let fence = holder.fence.unwrap_or(opened.seen.fence);
    format!("{}, {time}, fence {fence}", described(holder))
}

/// `web-1:4711 nightly, thread main, reader`
pub(super) fn described(party: &Owner) -> String {
    let mut text = owner(party);
    if party.thread != "-" {
        text += &format!(", thread {}", party.thread);
    }
    if party.access != "owner" {
        text += &format!(", {}", party.access);
    }
    if party.is_first_guard {
        text += " (its first guard)";
    }
    text
}

/// The use that a holder makes of the lock.
pub(super) fn held_or_kept(holder: &Owner) -> &'static str {
    if holder.keeps { "held or kept" } else { "held" }
}
