//! docs/COMMAND_LINE.md lists every field of the JSON of `ls` and `show`, and no other. The
//! program's copies of the library's values are those of docs/CONFIGURATION.md.

use std::collections::BTreeSet;

use fairlock::inspect::LockInfo;

use crate::defaults;
use crate::show::Following;
use crate::*;

/// The text below a heading of the page, to the next heading of any level.
fn section(heading: &str) -> &'static str {
    let page = include_str!("../../../docs/COMMAND_LINE.md");
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.split("\n#").next().unwrap_or(rest)
}

/// The first column of its table: `` | `name` | … ``.
fn fields(section: &str) -> BTreeSet<String> {
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = cells.filter_map(|cell| cell.split('`').next());
    names.map(str::to_owned).collect()
}

/// The objects of its first block of JSON.
fn examples(section: &str) -> Vec<Value> {
    let (_, rest) = section.split_once("```json\n").expect("an example");
    let (block, _) = rest.split_once("```").expect("its end");
    let values = serde_json::Deserializer::from_str(block).into_iter();
    values.map(|value| value.expect("JSON")).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    let object = value.as_object().expect("an object");
    object.keys().cloned().collect()
}

#[test]
fn every_field_and_event_is_documented() {
    let server = Server::start();
    let manager = manager(&server);
    let _guard = manager.lock("n").unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_queued(&server, "n", 1);
    let lock = section("### The JSON of a lock");
    let party = section("### The JSON of a party");
    let change = section("### The JSON of a change");
    let mut objects = examples(lock);
    serde_json::from_value::<LockInfo>(objects[0].clone()).expect("the example is a lock");
    for line in ["ls --json", "show n --json"] {
        let printed = printed(fairlock(&server, line));
        objects.push(serde_json::from_str(&printed).expect("one object"));
    }
    for (at, object) in objects.iter().enumerate() {
        assert_eq!(keys(object), fields(lock));
        // Nobody waits in the example.
        let places = &["/holder", "/holders/0", "/queue/0"][..2 + at.min(1)];
        for shown in places.iter().map(|place| object.pointer(place)) {
            assert_eq!(keys(shown.expect("a party")), fields(party));
        }
    }
    let first = Following::of(&server, "n").event("first_look");
    for shown in [&[first], &examples(change)[..]].concat() {
        assert_eq!(keys(&shown), fields(change));
    }
    let source = include_str!("../../src/command/show/change.rs");
    let (_, events) = source.split_once("enum Event {").expect("the events");
    let (events, _) = events.split_once('}').expect("their end");
    for event in events.replace("#[default]", "").split(',').map(str::trim) {
        let is_listed = |name: &str| name.replace('_', "").eq_ignore_ascii_case(event);
        let is_listed = change.split('`').any(is_listed);
        assert!(is_listed || event.is_empty(), "{event}");
    }
}

#[test]
fn values_of_the_library_are_those_of_its_page() {
    let page = include_str!("../../../docs/CONFIGURATION.md");
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    let longest = defaults::MAX_TTL.as_secs() / 3600;
    let ttl = format!("{} | 1 s to {longest} h |", seconds(defaults::DEFAULT_TTL));
    let timeout = format!("{} ms, or", defaults::DEFAULT_COMMAND_TIMEOUT.as_millis());
    for (setting, value) in [
        ("`ttl`", ttl),
        ("`label`", format!("none | {} bytes", defaults::MAX_LABEL)),
        ("`prefix`", format!("`{}` |", defaults::DEFAULT_PREFIX)),
        ("`command_timeout`, T", timeout),
        ("`check_period`, P", seconds(defaults::DEFAULT_CHECK_PERIOD)),
        ("`horizon`, H", seconds(defaults::DEFAULT_HORIZON)),
        ("`outage_limit`", seconds(defaults::DEFAULT_OUTAGE_LIMIT)),
    ] {
        let row = format!("| {setting} | {value}");
        assert!(page.contains(&row), "{row}");
    }
}
