//! The view and the frame, without a terminal and without Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlock::{PreviousHolder, inspect::LockState};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw::{Palette, Setting, draw};
use super::key::Key;
use super::look::{Look, Trouble};
use super::order::Column;
use super::samples::{owner, seen};
use super::seen::{Opened, Seen};
use super::view::{Action, Mode, View};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn look(names: Vec<Seen>) -> Look {
    Look {
        names,
        round_trip: Duration::from_micros(250),
        server_time: Some(std::time::UNIX_EPOCH + seconds(45_005)),
        pause: seconds(1),
        took: Duration::ZERO,
        ended: Instant::now(),
    }
}

/// A view of these names, sorted by name.
fn view(names: Vec<Seen>) -> View {
    let mut view = View::new(Column::Name);
    view.on_look(Ok(look(names)), Instant::now());
    view.page = 3;
    view
}

fn named(names: &[&str]) -> Vec<Seen> {
    names.iter().map(|name| seen(name)).collect()
}

fn press(view: &mut View, keys: &str) -> Vec<Action> {
    keys.chars()
        .filter_map(|key| view.on_key(Key::Char(key)))
        .collect()
}

fn setting(palette: Palette) -> Setting {
    Setting {
        server: "redis.internal:6379".to_owned(),
        interval: seconds(1),
        palette,
    }
}

fn frame(view: &mut View, columns: u16, rows: u16, now: Instant) -> String {
    let setting = setting(Palette::Plain);
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw(frame, view, &setting, now));
    drawn.expect("a frame");
    match columns {
        0 => String::new(),
        _ => terminal.backend().to_string(),
    }
}

#[test]
fn frame_shows_names_holders_and_numbers() {
    let mut lapsed = seen("reports");
    lapsed.state = LockState::Lapsed;
    let mut awaited = seen("invoices:42");
    awaited.waiters = 3;
    awaited.is_awaited = true;
    awaited.oldest_wait = Some(seconds(184));
    let mut view = view(vec![lapsed, awaited]);
    let frame = frame(&mut view, 110, 8, Instant::now());
    let line = |text: &str| {
        let found = frame.lines().find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("no {text:?} in\n{frame}"))
    };
    assert!(line("redis.internal:6379").contains("round trip 0.25 ms"));
    assert!(line("12:30:05 UTC").contains("a look each 1s"), "{frame}");
    line("2 names: 1 held, 1 awaited, 1 lapsed");
    for part in [" 3 ", "3m 04s", "12s", "web-1:4711 nightly"] {
        assert!(line("invoices:42").contains(part), "{part}: {frame}");
    }
    assert!(line("reports").contains("lapsed"), "{frame}");
    line("q quit");
}

#[test]
fn plain_palette_has_no_color() {
    for (palette, has_color) in [(Palette::Plain, false), (Palette::Colors, true)] {
        let mut view = view(named(&["a"]));
        press(&mut view, "f");
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        let setting = setting(palette);
        let drawn = terminal.draw(|frame| draw(frame, &mut view, &setting, Instant::now()));
        drawn.expect("a frame");
        let mut cells = terminal.backend().buffer().content().iter();
        let colored = cells.any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
        assert_eq!(colored, has_color, "{palette:?}");
    }
}

#[test]
fn ages_grow_between_looks_by_the_local_clock() {
    let mut view = view(named(&["a"]));
    let later = Instant::now() + seconds(30);
    assert!(frame(&mut view, 80, 8, later).contains("42s"));
}

#[test]
fn every_window_size_can_be_drawn() {
    let mut modes = Vec::new();
    for keys in ["", "/漢字", "?", "f"] {
        let mut view = view(named(&[
            "a",
            "漢字漢字漢字漢字漢字漢字漢字漢字",
            "b\x1b[31m",
        ]));
        press(&mut view, keys);
        modes.push(view);
    }
    let mut opened = view(named(&["a"]));
    opened.on_key(Key::Enter);
    opened.on_look_at_one("a", Ok(Some(open("a", 3))), Instant::now());
    modes.push(opened);
    modes.push(View::new(Column::Busy));
    for view in &mut modes {
        for (columns, rows) in [
            (20, 5),
            (1, 1),
            (0, 0),
            (5, 2),
            (40, 10),
            (300, 90),
            (3, 40),
        ] {
            frame(view, columns, rows, Instant::now());
        }
    }
}

#[test]
fn low_window_shows_rows_and_the_question() {
    let mut view = view(named(&["invoices:42"]));
    assert!(frame(&mut view, 20, 5, Instant::now()).contains("invoices"));
    press(&mut view, "f");
    let question = frame(&mut view, 40, 10, Instant::now());
    assert!(question.contains("web-1:4711"), "{question}");
    assert!(question.contains("y: release"), "{question}");
}

fn open(name: &str, waiters: u64) -> Box<Opened> {
    Box::new(Opened {
        seen: Seen {
            waiters,
            ..seen(name)
        },
        previous: PreviousHolder::Lapsed,
        holders: vec![owner("web-1", seconds(12))],
        queue: (0..waiters)
            .map(|at| owner(&format!("web-{}", at + 2), seconds(9 - at)))
            .collect(),
    })
}

#[test]
fn open_name_shows_its_queue_in_order() {
    let mut view = view(named(&["a"]));
    assert_eq!(view.on_key(Key::Enter), Some(Action::Watch("a".into())));
    view.on_look_at_one("a", Ok(Some(open("a", 3))), Instant::now());
    let frame = frame(&mut view, 80, 12, Instant::now());
    let at = |text: &str| {
        frame
            .find(text)
            .unwrap_or_else(|| panic!("{text}\n{frame}"))
    };
    let order = [
        "HOLDERS", "web-1", "QUEUE", "1. web-2", "2. web-3", "3. web-4",
    ];
    assert!(order.map(at).is_sorted(), "{frame}");
    assert!(frame.contains("the holder before lapsed"), "{frame}");
    assert_eq!(view.on_key(Key::Escape), Some(Action::Unwatch));
    assert!(view.opened.is_none());
}

#[test]
fn waiter_that_is_not_heard_of_is_marked() {
    let mut view = view(named(&["a"]));
    view.on_key(Key::Enter);
    let mut opened = open("a", 2);
    opened.queue[1].silent = Some("last heard 12m ago".to_owned());
    view.on_look_at_one("a", Ok(Some(opened)), Instant::now());
    let frame = frame(&mut view, 80, 12, Instant::now());
    assert_eq!(frame.matches("last heard 12m ago").count(), 1, "{frame}");
}

#[test]
fn long_queue_scrolls_to_its_last_waiter() {
    let mut view = view(named(&["a"]));
    view.on_key(Key::Enter);
    let mut long = open("a", 0);
    long.queue = vec![owner("web-9", seconds(1)); 500];
    view.on_look_at_one("a", Ok(Some(long)), Instant::now());
    frame(&mut view, 80, 12, Instant::now());
    view.on_key(Key::End);
    assert!(frame(&mut view, 80, 12, Instant::now()).contains("500. web-9"));
    view.on_key(Key::Home);
    assert!(frame(&mut view, 80, 12, Instant::now()).contains("HOLDERS"));
}

#[test]
fn cursor_stays_on_its_name_when_rows_move() {
    let mut view = view(named(&["b", "c"]));
    view.on_key(Key::Down);
    assert_eq!(view.selected.as_deref(), Some("c"));
    view.on_look(Ok(look(named(&["a", "b", "c", "d"]))), Instant::now());
    let shown = view.shown();
    assert_eq!(view.position(&shown), 2);
}

#[test]
fn filter_is_live_and_escape_ends_it() {
    let mut view = view(named(&["invoices", "reports"]));
    press(&mut view, "/rep");
    assert_eq!(view.shown().len(), 1);
    assert!(frame(&mut view, 80, 8, Instant::now()).contains("filter: rep_"));
    // In the filter these are letters and no commands.
    assert_eq!(press(&mut view, "qf"), []);
    assert_eq!(view.shown().len(), 0);
    view.on_key(Key::Escape);
    assert_eq!(view.shown().len(), 2);
    press(&mut view, "/inv");
    view.on_key(Key::Enter);
    assert_eq!(view.shown().len(), 1);
    assert_eq!(view.on_key(Key::Escape), None);
    assert_eq!(view.shown().len(), 2);
    assert_eq!(view.on_key(Key::Escape), Some(Action::Quit));
}

#[test]
fn keys_sort_by_every_column_both_ways() {
    let mut view = view(named(&["a", "b"]));
    for (key, column) in "123456".chars().zip(Column::ALL) {
        press(&mut view, &key.to_string());
        assert_eq!(view.order.column, column);
    }
    assert_eq!(&*view.shown()[0].seen.name, "a");
    press(&mut view, "r");
    assert_eq!(&*view.shown()[0].seen.name, "b");
    press(&mut view, "s");
    assert_eq!(view.order.column, Column::Busy);
    press(&mut view, "S");
    assert_eq!(view.order.column, Column::Name);
}

#[test]
fn release_needs_the_letter_y_and_has_the_fence_shown() {
    let release = || Action::Release(Arc::from("a"), 700);
    for (key, action) in [
        (Key::Char('y'), Some(release())),
        (Key::Char('n'), None),
        (Key::Enter, None),
        (Key::Escape, None),
        (Key::Pasted("y".to_owned()), None),
    ] {
        let mut view = view(named(&["a"]));
        assert_eq!(press(&mut view, "f"), []);
        let question = frame(&mut view, 80, 20, Instant::now());
        assert!(question.contains("web-1:4711"), "{question}");
        assert!(question.contains("fence 700"), "{question}");
        // A look between the question and the answer does not change the fence.
        let next = Seen {
            fence: 701,
            holder: Some(super::seen::Owner {
                fence: Some(701),
                ..owner("web-2", seconds(0))
            }),
            ..seen("a")
        };
        view.on_look(Ok(look(vec![next])), Instant::now());
        let question = frame(&mut view, 80, 20, Instant::now());
        assert!(question.contains("has changed since"), "{question}");
        assert_eq!(view.on_key(key.clone()), action, "{key:?}");
        assert_eq!(view.mode, Mode::Browsing);
    }
}

#[test]
fn free_and_lapsed_names_are_not_released() {
    for state in [LockState::Free, LockState::Lapsed] {
        let mut view = view(vec![Seen { state, ..seen("a") }]);
        assert_eq!(press(&mut view, "f"), []);
        assert_eq!(view.mode, Mode::Browsing);
        assert!(view.notice.is_some_and(|notice| notice.contains("nobody")));
    }
}

#[test]
fn one_of_several_holders_is_chosen_first() {
    let mut view = view(vec![Seen {
        holders: 2,
        ..seen("a")
    }]);
    assert_eq!(press(&mut view, "f"), [Action::Watch("a".into())]);
    let mut opened = open("a", 1);
    opened.holders.push(super::seen::Owner {
        fence: Some(555),
        ..owner("web-7", seconds(1))
    });
    view.on_look_at_one("a", Ok(Some(opened)), Instant::now());
    view.on_key(Key::Down);
    assert_eq!(press(&mut view, "fy"), [Action::Release("a".into(), 555)]);
}

#[test]
fn outage_is_shown_with_the_age_of_the_data() {
    let mut view = view(named(&["a"]));
    let now = Instant::now();
    let failed = || {
        let why = "no reply, and many more words than there is room for".to_owned();
        let what = "Redis does not answer";
        Err(Trouble { what, why })
    };
    view.on_look(failed(), now + seconds(5));
    view.on_look(failed(), now + seconds(60));
    let shown = frame(&mut view, 80, 8, now + seconds(65));
    assert!(
        shown.contains("Redis does not answer, for 1m 00s"),
        "{shown}"
    );
    assert!(shown.contains("data 1m 05s old  no reply"), "{shown}");
    assert!(shown.contains("\"a "), "the old rows stay: {shown}");
    view.on_look(Ok(look(named(&["a"]))), now + seconds(70));
    assert!(!frame(&mut view, 80, 8, now).contains("does not answer"));
}

#[test]
fn ctrl_c_quits_from_everywhere() {
    for keys in ["", "/", "?", "f"] {
        let mut view = view(named(&["a"]));
        press(&mut view, keys);
        assert_eq!(view.on_key(Key::Control('c')), Some(Action::Quit), "{keys}");
    }
}
