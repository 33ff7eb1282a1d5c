//! Boxes above the table: the keys, and the question before a release by force.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Padding};

use unicode_width::UnicodeWidthStr as _;

use super::name::{described, held_or_kept};
use super::{Meaning, Setting, lines};
use crate::command::top::view::{Release, View};
use crate::printable::cut;

const KEYS: [(&str, &str); 11] = [
    ("up down, k j", "move; also page up, page down, home, end"),
    ("enter", "open a name: its holders and its queue"),
    ("/", "show only names and holders with a text"),
    (
        "s S, 1 to 6",
        "sort by the next, the previous, or this column",
    ),
    ("r", "reverse the order"),
    ("f", "release a lock by force; asks first"),
    ("ctrl-l", "draw again"),
    ("ctrl-z", "suspend"),
    ("? h", "this help"),
    ("q, escape", "back, or quit"),
    ("ctrl-c", "quit"),
];

pub(super) fn help(frame: &mut Frame, area: Rect, setting: &Setting) {
    let plain = Style::new();
    let mut text: Vec<(String, Style)> = KEYS
        .iter()
        .map(|(keys, what)| (format!("{keys:<14} {what}"), plain))
        .collect();
    text.push((String::new(), plain));
    text.extend(
        [
            "PER SEC counts hand-overs between two looks. A lock that was",
            "taken while nobody waited counts once.",
        ]
        .map(|line| (line.to_owned(), setting.palette.style(Meaning::Faint))),
    );
    boxed(frame, area, " Keys ", text);
}

pub(super) fn release(
    frame: &mut Frame,
    area: Rect,
    release: &Release,
    view: &View,
    setting: &Setting,
) {
    let style = |meaning| setting.palette.style(meaning);
    let mut text = vec![
        (format!("{:?}", release.name), style(Meaning::Title)),
        (
            format!(
                "{} by {}",
                held_or_kept(&release.holder),
                described(&release.holder)
            ),
            Style::new(),
        ),
        (
            format!("fence {}, {} waiting", release.fence, release.waiters),
            Style::new(),
        ),
    ];
    let note = if has_changed(release, view) {
        "The holder has changed since. This releases only the one above."
    } else if release.holder.access == "reader" {
        "All readers lose it. Until their next renewal they may not notice."
    } else if release.holder.has_fixed_lease {
        "It has a fixed lease, so it notices only when it unlocks."
    } else {
        "Until its next renewal the holder may believe that it holds it."
    };
    text.push((note.to_owned(), style(Meaning::Alarm)));
    text.push((
        "y: release it   any other key: do nothing".to_owned(),
        style(Meaning::Title),
    ));
    // A low window shows the question and the holder before all else.
    if area.height < 7 {
        text.swap(2, 4);
    }
    boxed(frame, area, " Release by force? ", text);
}

/// Whether a later look saw another fence, or no holder.
fn has_changed(release: &Release, view: &View) -> bool {
    if let Some(Ok(Some(opened))) = view.opened.as_ref().map(|opened| &opened.seen) {
        let fences = || opened.holders.iter().map(|holder| holder.fence);
        return !fences().any(|fence| fence == Some(release.fence));
    }
    let row = view.rows.iter().find(|row| row.seen.name == release.name);
    let holder = row.and_then(|row| row.seen.holder.as_ref());
    holder.is_none_or(|holder| holder.fence != Some(release.fence))
}

/// The text in a box in the middle of an area, or without a box if there is no room for one.
fn boxed(frame: &mut Frame, area: Rect, title: &str, text: Vec<(String, Style)>) {
    let widest = text.iter().map(|(line, _)| line.width()).max();
    let wanted = (widest.unwrap_or_default() + 4).max(title.width() + 4);
    let fit = |count| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let outer = area.centered(fit(wanted), fit(text.len() + 2));
    frame.render_widget(Clear, outer);
    let has_box = outer.height > 4 && outer.width > 24;
    let inner = if has_box {
        let block = Block::bordered()
            .title(cut(title, usize::from(outer.width - 2)))
            .padding(Padding::horizontal(1));
        let inner = block.inner(outer);
        frame.render_widget(block, outer);
        inner
    } else {
        outer
    };
    lines(frame, inner, text);
}
