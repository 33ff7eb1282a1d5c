//! A type name has one owner, so that a reader who meets it knows which type it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{code::code_of, is_unit_test, read};

/// The names that still have several owners. The list may only shrink.
///
/// - `Mutex`: the users' lock, and the type in `sync.rs` that stands for parking_lot's in a model.
const SEVERAL_OWNERS: &[&str] = &["Mutex"];

#[test]
fn type_names_have_one_owner() {
    let mut owners: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in read("src", "rs") {
        if is_unit_test(&path) || path.ends_with("loom_models.rs") {
            continue;
        }
        for name in types_in(&code_of(&text)) {
            owners.entry(name).or_default().insert(path.clone());
        }
    }
    owners.retain(|_, files| files.len() > 1);
    let names: Vec<&String> = owners.keys().collect();
    assert_eq!(
        names, SEVERAL_OWNERS,
        "rename the new one, or take a name off the list: {owners:#?}"
    );
}

/// The structs, enums and traits that this code defines outside its unit tests.
fn types_in(code: &str) -> Vec<String> {
    let end = code.find("#[cfg(test)]\nmod tests {");
    let lines = code[..end.unwrap_or(code.len())].lines();
    lines.filter_map(type_of).collect()
}

/// The type that a line of code begins to define.
pub(super) fn type_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    let item = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let mut words = item.split_whitespace();
    if !["struct", "enum", "trait"].contains(&words.next()?) {
        return None;
    }
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    Some(words.next()?.chars().take_while(is_word).collect())
}

#[test]
fn types_are_found_with_any_visibility() {
    let code = "pub struct A<T>(T);\n    pub(crate) enum B {\npub(in crate::store) trait C: D {\n\
                struct E;\nimpl F {}\nlet structure = 1;\n#[cfg(test)]\nmod tests {\nstruct G;\n}\n";
    assert_eq!(types_in(code), ["A", "B", "C", "E"]);
}
