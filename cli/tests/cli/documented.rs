//! docs/COMMAND_LINE.md lists every field of the JSON of `ls`, `show` and `watch`, and no other.

use std::collections::BTreeSet;
use std::fs;

use fairlock::{LockOptions, inspect::LockInfo};
use serde_json::Value;

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

/// The lines of its first block of JSON.
fn example(section: &str) -> Vec<Value> {
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
fn every_field_of_a_lock_is_documented() {
    let server = Server::start();
    let manager = labelled(&server, "me");
    let _guard = manager.lock("n").unwrap();
    let _waiter = manager.enqueue("n").unwrap();
    until_awaited(&manager, "n", 1);
    let page = page();
    let (lock, party) = (
        section(&page, "### The JSON of a lock"),
        section(&page, "### The JSON of a party"),
    );
    for args in [&["ls", "--json"][..], &["show", "n", "--json"]] {
        let ended = end(&mut fairlock(&server, args));
        let object: Value = serde_json::from_str(&ended.stdout).expect("one object");
        assert_eq!(keys(&object), fields(lock));
        for shown in [
            &object["holder"],
            &object["holders"][0],
            &object["queue"][0],
        ] {
            assert_eq!(keys(shown), fields(party));
        }
    }
    let [example] = &example(lock)[..] else {
        panic!("one example of a lock");
    };
    assert_eq!(keys(example), fields(lock));
    assert_eq!(keys(&example["holder"]), fields(party));
    serde_json::from_value::<LockInfo>(example.clone()).expect("the example is a lock");
}

#[test]
fn every_field_and_event_of_watch_is_documented() {
    let server = Server::start();
    let manager = labelled(&server, "me").with(LockOptions::new());
    let _guard = manager.lock("n").unwrap();
    let mut child = fairlock(&server, &["watch", "n", "--json"]);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut lines, &mut line).expect("a line");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let page = page();
    let documented = section(&page, "### The JSON of a change");
    let object: Value = serde_json::from_str(&line).expect("an object");
    assert_eq!(keys(&object), fields(documented));
    for example in example(documented) {
        assert_eq!(keys(&example), fields(documented));
    }
    let source = include_str!("../../src/command/watch/change.rs");
    let (_, events) = source.split_once("enum Event {").expect("the events");
    let (events, _) = events.split_once('}').expect("their end");
    for event in events
        .split(',')
        .map(str::trim)
        .filter(|event| !event.is_empty())
    {
        let name = serde_json::to_string(event).unwrap();
        let mut snake = String::new();
        for c in name.trim_matches('"').chars() {
            if c.is_uppercase() && !snake.is_empty() {
                snake.push('_');
            }
            snake.extend(c.to_lowercase());
        }
        assert!(documented.contains(&format!("`{snake}`")), "{snake}");
    }
}
