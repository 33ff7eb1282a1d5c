//! The two lines at the top: which Redis, how it answers, and the numbers of all names.

use std::time::{Duration, Instant};

use fairlock::inspect::LockState;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{Meaning, Setting, joined};
use crate::age;
use crate::command::top::seen::Seen;
use crate::command::top::view::{Looks, View};
use crate::printable::cut;

/// Looks take this much longer than the interval before the header calls the data old.
const TOLERANCE: Duration = Duration::from_secs(2);

pub(super) fn draw(frame: &mut Frame, area: Rect, view: &View, setting: &Setting, now: Instant) {
    let columns = usize::from(area.width);
    let where_and_when = (joined(&server(view, setting, now), columns), Meaning::Title);
    let numbers = (joined(&numbers(view), columns), Meaning::Usual);
    let trouble = trouble(&view.looks, now);
    let trouble = trouble.map(|parts| (cut(&parts.join("  "), columns), Meaning::Alarm));
    let shown = match (area.height, trouble) {
        (0..=1, Some(trouble)) => vec![trouble],
        (0..=1, None) => vec![numbers],
        (_, Some(trouble)) => vec![where_and_when, trouble],
        (_, None) => vec![where_and_when, numbers],
    };
    for (row, (line, meaning)) in area.rows().zip(shown) {
        let style = setting.palette.style(meaning);
        frame.render_widget(Line::styled(line, style), row);
    }
}

fn server(view: &View, setting: &Setting, now: Instant) -> Vec<String> {
    let mut parts = vec![format!("Locks on {}", setting.server)];
    let Some(last) = &view.looks.last else {
        return parts;
    };
    parts.push(format!("round trip {}", round_trip(last.round_trip)));
    let data = view.looks.age(now).unwrap_or_default();
    // In an outage the next line has it.
    if view.looks.outage.is_none() {
        parts.push(format!("data {} old", age::short(data)));
    }
    // The pause can be longer than the user asked for, to spare the server.
    let period = last.took + last.pause;
    if period > setting.interval + setting.interval / 4 {
        let (period, took) = (age::short(period), age::short(last.took));
        parts.push(format!("a look each {period}, it takes {took}"));
    } else {
        let interval = humantime::format_duration(setting.interval);
        parts.push(format!("a look each {interval}"));
    }
    if let Some(time) = last.server_time {
        let time = humantime::format_rfc3339_seconds(time + data).to_string();
        // Without the date.
        parts.push(format!("{} UTC", &time[11..19]));
    }
    parts
}

fn numbers(view: &View) -> Vec<String> {
    if view.looks.last.is_none() {
        let found = view
            .looks
            .found
            .map(|found| format!(" {found} names so far"));
        return vec![format!("looking …{}", found.unwrap_or_default())];
    }
    let count = |is: &dyn Fn(&Seen) -> bool| view.rows.iter().filter(|row| is(&row.seen)).count();
    let held = count(&|seen| seen.state == LockState::Held);
    let awaited = count(&|seen| seen.is_awaited);
    let lapsed = count(&|seen| seen.state == LockState::Lapsed);
    // A name that is new has no rate yet. Adding to zero keeps the sum of none from being -0.
    let rate = view.rows.iter().filter_map(|row| row.rate);
    let rate = rate.fold(0.0, |sum, rate| sum + rate);
    let names = match view.rows.len() {
        1 => "1 name".to_owned(),
        names => format!("{names} names"),
    };
    let mut parts = vec![
        format!("{names}: {held} held, {awaited} awaited, {lapsed} lapsed"),
        format!("{rate:.1} hand-overs/s"),
    ];
    if !view.filter.is_empty() {
        let shown = view.shown().len();
        parts.push(format!("{shown} match {:?}", view.filter));
    }
    parts
}

/// The trouble with the data. It takes the place of the numbers, which are old then.
fn trouble(looks: &Looks, now: Instant) -> Option<Vec<String>> {
    if let Some((since, trouble)) = &looks.outage {
        let silent = now.saturating_duration_since(*since);
        let data = looks.age(now);
        let data = data.map_or("no data yet".to_owned(), |data| {
            format!("data {} old", age::short(data))
        });
        return Some(vec![
            format!("{}, for {}", trouble.what, age::short(silent)),
            data,
            trouble.why.clone(),
        ]);
    }
    let last = looks.last.as_ref()?;
    let data = looks.age(now)?;
    let is_late = data > last.pause + last.took + TOLERANCE;
    is_late.then(|| {
        vec![
            format!("data {} old", age::short(data)),
            "the look that runs now takes long".to_owned(),
        ]
    })
}

fn round_trip(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    match time.as_millis() {
        0..10 => format!("{millis:.2} ms"),
        10..1000 => format!("{millis:.0} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
