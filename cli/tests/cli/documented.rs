//! docs/COMMAND_LINE.md lists every field of the JSON of `ls` and `show`, and no other. The
//! program's copies of the library's values are those of docs/CONFIGURATION.md.

use std::collections::BTreeSet;
use std::fs;

use fairlock::inspect::LockInfo;
use serde_json::Value;

use crate::defaults;
use crate::follow::Following;
use crate::look::{fairlock, labelled, until_awaited};
use crate::process::end;
use crate::support::Server;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COMMAND_LINE.md");
    fs::read_to_string(path).expect("the page is in the repository")
}

/// The text below a heading, to the next heading of any level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(&format!("\n{heading}\n"));
    let start = start.unwrap_or_else(|| panic!("the page has {heading:?}"));
    let rest = &page[start + heading.len() + 2..];
    &rest[..rest.find("\n#").unwrap_or(rest.len())]
}

/// The first column of its table: `` | `name` | … ``.
fn fields(section: &str) -> BTreeSet<String> {
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `"));
    cells
        .filter_map(|cell| Some(cell.split_once('`')?.0.to_owned()))
        .collect()
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
    let manager = labelled(&server, "me");
    let _guard = manager.lock("n").unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_awaited(&manager, "n", 1);
    let page = page();
    let lock = section(&page, "### The JSON of a lock");
    let party = section(&page, "### The JSON of a party");
    let change = section(&page, "### The JSON of a change");
    for args in [&["ls", "--json"][..], &["show", "n", "--json"]] {
        let ended = end(fairlock(&server, args));
        let object: Value = serde_json::from_str(&ended.stdout).expect("one object");
        assert_eq!(keys(&object), fields(lock));
        let holders = [&object["holder"], &object["holders"][0]];
        for shown in [holders[0], holders[1], &object["queue"][0]] {
            assert_eq!(keys(shown), fields(party));
        }
    }
    let [example] = &examples(lock)[..] else {
        panic!("one example of a lock");
    };
    assert_eq!(keys(example), fields(lock));
    assert_eq!(keys(&example["holder"]), fields(party));
    serde_json::from_value::<LockInfo>(example.clone()).expect("the example is a lock");
    let first = Following::of(&server, "n").event("first_look");
    for shown in [&[first], &examples(change)[..]].concat() {
        assert_eq!(keys(&shown), fields(change));
    }
    let source = include_str!("../../src/command/show/change.rs");
    let (_, events) = source.split_once("enum Event {").expect("the events");
    let (events, _) = events.split_once('}').expect("their end");
    for event in events
        .split(',')
        .map(|event| event.trim().trim_start_matches("#[default]").trim())
        .filter(|name| !name.is_empty())
    {
        let snake = event.chars().fold(String::new(), |snake, c| match c {
            'A'..='Z' if !snake.is_empty() => format!("{snake}_{}", c.to_ascii_lowercase()),
            c => snake + &c.to_ascii_lowercase().to_string(),
        });
        assert!(change.contains(&format!("`{snake}`")), "{snake}");
    }
}

#[test]
fn values_of_the_library_are_those_of_its_page() {
    let page = include_str!("../../../docs/CONFIGURATION.md");
    let [ttl, check_period, horizon, outage_limit] = [
        defaults::DEFAULT_TTL,
        defaults::DEFAULT_CHECK_PERIOD,
        defaults::DEFAULT_HORIZON,
        defaults::DEFAULT_OUTAGE_LIMIT,
    ]
    .map(|time| format!("{} s", time.as_secs_f64()));
    let longest = defaults::MAX_TTL.as_secs() / 3600;
    let timeout = defaults::DEFAULT_COMMAND_TIMEOUT.as_millis();
    for row in [
        format!("| `ttl` | {ttl} | 1 s to {longest} h |"),
        format!("| `label` | none | {} bytes", defaults::MAX_LABEL),
        format!("| `prefix` | `{}` |", defaults::DEFAULT_PREFIX),
        format!("| `command_timeout`, T | {timeout} ms, or"),
        format!("| `check_period`, P | {check_period}, or"),
        format!("| `horizon`, H | {horizon}, or"),
        format!("| `outage_limit` | {outage_limit};"),
    ] {
        assert!(page.contains(&row), "{row}");
    }
}
