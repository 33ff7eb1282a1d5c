//! The view and the frame, without a terminal and without Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyModifiers};
use fairlock::{Error, inspect::LockState};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::draw;
use super::row::{Column, Row, rate};
use super::view::{Action, Mode, View};

/// A holder with this fence, or a waiter, since so many seconds.
fn party(host: &str, age: f64, fence: Option<u64>) -> Value {
    json!({
        "manager": "m", "host": host, "pid": 4711, "thread": "main", "thread_id": 7,
        "label": "nightly", "since": 1000.0 - age, "ttl": 10.0, "fence": fence, "permits": 1,
        "shared": false, "fixed_lease": false, "lapsed_for": null, "last_heard": 0.1,
        "hands_over": false, "keeps": false
    })
}

/// A mutex with these parties.
fn row_of(name: &str, holders: &[Value], queue: &[Value]) -> Row {
    let info = json!({
        "name": name, "seen_at": 1000.0, "kind": "mutex", "state": "held", "fence": 700,
        "holder": holders.first(), "holders": holders, "time_left": 8.0,
        "waiters": queue.len(), "queue": queue, "lapsed": [], "previous_holder": "released",
        "served": 10
    });
    let info = serde_json::from_value(info).expect("a lock");
    Row { info, rate: None }
}

/// Process 4711 on web-1 has held it for 12 s, and nobody waits.
fn row(name: &str) -> Row {
    let holder = party("web-1", 12.0, Some(700));
    row_of(name, &[holder], &[])
}

fn look(view: &mut View, rows: Vec<Row>) {
    let infos = rows.iter().map(|row| row.info.clone()).collect();
    view.on_look(infos, Instant::now());
}

/// A view of these rows, in the order of their names.
fn view(rows: Vec<Row>) -> View {
    let mut view = View {
        server: "redis.internal:6379".to_owned(),
        column: Column::Name,
        ..View::default()
    };
    look(&mut view, rows);
    view
}

/// Presses these keys. A line end is Enter, `\x1b` is Escape, and `\x03` Ctrl-C.
fn press(view: &mut View, keys: &str) -> Vec<Action> {
    let keys = keys.chars().map(|key| match key {
        '\n' => KeyCode::Enter.into(),
        '\x1b' => KeyCode::Esc.into(),
        '\x03' => KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        letter => KeyCode::Char(letter).into(),
    });
    keys.filter_map(|key: KeyEvent| view.on_input(Input::Key(key)))
        .collect()
}

fn names(view: &View) -> String {
    view.shown().iter().map(|row| &*row.info.name).collect()
}

fn frame(view: &mut View, columns: u16, rows: u16, now: Instant) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw(frame, view, now));
    drawn.expect("a frame");
    match columns {
        0 => String::new(),
        _ => terminal.backend().to_string(),
    }
}

/// A frame of a usual window shows each of these parts, in this order.
#[track_caller]
fn shows(view: &mut View, parts: &str) {
    shows_at(view, Instant::now(), parts);
}

#[track_caller]
fn shows_at(view: &mut View, now: Instant, parts: &str) {
    let frame = frame(view, 110, 14, now);
    let mut rest = &*frame;
    for part in parts.split('|') {
        let found = rest.find(part);
        rest = &rest[found.unwrap_or_else(|| panic!("no {part:?} in\n{frame}"))..];
    }
}

#[test]
fn frame_shows_names_holders_growing_ages_and_an_outage() {
    let mut lapsed = row("reports");
    lapsed.info.state = LockState::Lapsed;
    let waiter = party("web-2", 154.0, None);
    let holder = party("web-1", 12.0, Some(700));
    let mut view = view(vec![lapsed, row_of("a\x1b[31m", &[holder], &[waiter])]);
    let after = |seconds| Instant::now() + Duration::from_secs(seconds);
    shows_at(
        &mut view,
        after(30),
        "redis.internal:6379|data 30s old|\
         names: 2, held: 1, awaited: 1, lapsed: 1|\
         a\\u{1b}[31m| 1 |3m 04s|42s|0.0s|web-1:4711 nightly|reports|lapsed|web-1:4711|q quit",
    );
    view.on_failure(Error::Closed, after(5));
    view.on_failure(Error::Closed, after(60));
    let parts = "data 1m 05s old|Failing for 1m 00s: |web-1";
    shows_at(&mut view, after(65), parts);
    look(&mut view, vec![row("a")]);
    shows_at(&mut view, after(65), "names: 1");
}

#[test]
fn every_window_size_can_be_drawn_and_a_low_one_used() {
    for keys in ["", "/漢字", "?", "f", "\n", "\n?", "\nf"] {
        let wide = "漢字漢字漢字漢字漢字漢字漢字漢字";
        let mut view = view(vec![row(wide), row("b\x1b[31m")]);
        press(&mut view, keys);
        for columns in [0, 1, 3, 20, 40, 120] {
            for rows in [0, 1, 2, 5, 10, 24] {
                frame(&mut view, columns, rows, Instant::now());
            }
        }
    }
    let mut view = view(vec![row("invoices:42")]);
    assert!(frame(&mut view, 20, 5, Instant::now()).contains("invoices"));
    press(&mut view, "f");
    for (columns, rows, parts) in [
        (40, 10, "y: release it|fence 700|web-1"),
        (60, 3, "y: release it"),
        (60, 2, "y: release it"),
        (60, 1, "y: release it"),
    ] {
        let question = frame(&mut view, columns, rows, Instant::now());
        let shows = |part| question.contains(part);
        assert!(parts.split('|').all(shows), "{rows}: {question}");
    }
}

#[test]
fn open_name_shows_its_queue_in_order() {
    let holder = party("web-1", 12.0, Some(700));
    let mut queue = vec![party("web-2", 9.0, None); 500];
    queue[1]["last_heard"] = json!(720.0);
    let mut view = view(vec![row_of("a", &[holder], &queue)]);
    press(&mut view, "\n");
    shows(
        &mut view,
        "HOLDERS|held for 12s: |web-1|QUEUE|1. waits for 9.0s (heard: 0.1s ago): |\
         2. waits for 9.0s (heard: 12m 00s ago, silent): |web-2|3. waits for 9.0s (h",
    );
    press(&mut view, "G");
    shows(&mut view, "500. |web-2");
    press(&mut view, "g");
    shows(&mut view, "HOLDERS");
    look(&mut view, vec![]);
    shows(&mut view, "It is free");
    assert_eq!(press(&mut view, "\x1b"), []);
    shows(&mut view, "names: 0|NAME");
}

#[test]
fn cursor_stays_on_its_name_when_rows_move() {
    let mut view = view(vec![row("b"), row("c")]);
    press(&mut view, "j");
    look(&mut view, ["a", "b", "c", "d"].map(row).to_vec());
    assert_eq!(view.cursor(&view.shown()), 2);
}

#[test]
fn filter_is_live_and_escape_ends_it() {
    let mut view = view(vec![row("i"), row("r")]);
    press(&mut view, "/R");
    shows(&mut view, "filter: R_");
    assert_eq!(names(&view), "r");
    // In the filter these are letters and no commands.
    assert_eq!(press(&mut view, "qf"), []);
    assert_eq!(names(&view), "");
    press(&mut view, "\x1b");
    for (text, found) in [("WEB-1", "ir"), ("471", "ir"), ("Nightly", "ir"), ("x", "")] {
        press(&mut view, "/");
        view.on_input(Input::Paste(text.to_owned()));
        press(&mut view, "\n");
        assert_eq!(names(&view), found, "{text}");
        assert_eq!(press(&mut view, "\x1b"), []);
        assert_eq!(names(&view), "ir");
    }
}

#[test]
fn keys_sort_by_every_column_both_ways() {
    let rows = [
        ("a", 1.0, "web-3", 6.0, 3.0, 3, 5),
        ("b", 3.0, "web-2", 5.0, 7.0, 1, 6),
        ("c", 2.0, "web-1", 4.0, 8.0, 2, 4),
    ];
    let rows = rows.map(|(name, rate, host, held, waited, waiters, left)| {
        let queue = vec![party("web-9", waited, None); waiters];
        let mut row = row_of(name, &[party(host, held, Some(7))], &queue);
        row.info.time_left = Duration::from_secs(left);
        row.rate = Some(rate);
        row
    });
    let mut view = view(rows.to_vec());
    // A look alone gives no rate.
    view.rows = rows.to_vec();
    // The columns are in the order of their keys.
    for (key, title, sorted) in [
        ("1", "NAME", "abc"),
        ("2", "BUSY", "bca"),
        ("3", "WAITING", "acb"),
        ("4", "OLDEST", "cba"),
        ("5", "HELD", "abc"),
        ("6", "LEFT", "bac"),
        ("7", "HOLDER", "cba"),
    ] {
        press(&mut view, key);
        shows(&mut view, &format!("NAME|{title}▾"));
        assert_eq!(names(&view), sorted, "{title}");
        press(&mut view, "r");
        assert_eq!(names(&view), sorted.chars().rev().collect::<String>());
        press(&mut view, "r");
    }
    press(&mut view, "s");
    assert_eq!(view.column, Column::Name);
    press(&mut view, "S");
    assert_eq!(view.column, Column::Holder);
}

#[test]
fn release_needs_the_letter_y_and_has_the_fence_shown() {
    let key = |code: KeyCode| Input::Key(code.into());
    let alt_y = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::ALT);
    let release = Action::Release(Arc::from("a"), 700);
    for (answer, action) in [
        (key(KeyCode::Char('y')), Some(release)),
        (key(KeyCode::Char('n')), None),
        (key(KeyCode::Enter), None),
        (key(KeyCode::Esc), None),
        (Input::Key(alt_y), None),
    ] {
        let mut view = view(vec![row("a")]);
        // The second key is not an answer: the question was not drawn yet.
        assert_eq!(press(&mut view, "fy"), []);
        shows(&mut view, "fence 700|web-1|Until it renews or unlocks");
        // A look between the question and the answer does not change the fence.
        let next = party("web-2", 0.0, Some(701));
        look(&mut view, vec![row_of("a", &[next], &[])]);
        shows(&mut view, "fence 700|web-1|has changed since");
        assert_eq!(view.on_input(answer.clone()), action, "{answer:?}");
        assert_eq!(view.mode, Mode::Browsing);
    }
}

#[test]
fn one_of_several_holders_is_chosen_and_none_of_a_free_name() {
    let holder = party("web-1", 12.0, Some(700));
    let other = party("web-7", 1.0, Some(555));
    let mut several = row_of("a", &[holder, other], &[]);
    let mut chosen = view(vec![several.clone()]);
    press(&mut chosen, "f");
    shows(&mut chosen, "HOLDERS|several hold it");
    press(&mut chosen, "jf");
    shows(&mut chosen, "fence 555");
    let release = Action::Release("a".into(), 555);
    assert_eq!(press(&mut chosen, "y"), [release]);
    for state in [LockState::Free, LockState::Lapsed] {
        several.info.state = state;
        let mut view = view(vec![several.clone()]);
        press(&mut view, "f");
        shows(&mut view, "nobody holds");
    }
}

#[test]
fn rates_come_from_two_looks() {
    // Nothing; hand-overs; a grant without a queue, and with a new queue.
    for (served, fence, expected) in [
        (10, 700, 0.0),
        (16, 709, 3.0),
        (10, 709, 0.5),
        (2, 709, 0.5),
    ] {
        let (before, mut later) = (row("a").info, row("a").info);
        (later.served, later.fence) = (served, fence);
        assert_eq!(rate(&before, &later), None, "at one moment");
        later.seen_at += Duration::from_secs(2);
        assert_eq!(rate(&before, &later), Some(expected));
    }
}

#[test]
fn ctrl_c_quits_from_everywhere() {
    for keys in ["", "/", "?", "f"] {
        let mut view = view(vec![row("a")]);
        press(&mut view, keys);
        assert_eq!(press(&mut view, "\x03"), [Action::Quit], "{keys}");
    }
}
