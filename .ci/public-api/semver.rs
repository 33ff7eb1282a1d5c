//! What a change of the public API asks of the version number, as Cargo reads version numbers.

use std::{collections::HashSet, fmt, str::FromStr};

/// The items that two lists of a public API do not share.
pub(crate) struct Changes<'a> {
    /// These can stop a program from compiling.
    breaking: Vec<String>,
    added: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    /// A changed item is a removed one and an added one.
    pub(crate) fn between(old: &'a str, new: &'a str) -> Self {
        let old: HashSet<&str> = items(old).collect();
        let mut changes = Changes {
            breaking: Vec::new(),
            added: Vec::new(),
        };
        let kept: HashSet<&str> = items(new).collect();
        let removed = old.iter().filter(|item| !kept.contains(**item));
        changes.breaking = removed.map(|item| format!("- {item}")).collect();
        changes.breaking.sort();
        for item in items(new).filter(|item| !old.contains(item)) {
            match reason_to_break(item, &old) {
                Some(reason) => changes.breaking.push(format!("+ {item}   ({reason})")),
                None => changes.added.push(item),
            }
        }
        changes
    }

    /// Cargo takes the first number that is not zero for the one that may break. New items raise
    /// the second one, or none while the first one is zero.
    pub(crate) fn allow(&self, old: Version, new: Version) -> bool {
        if !self.breaking.is_empty() {
            new.breaking_part() > old.breaking_part()
        } else if !self.added.is_empty() && old.0[0] > 0 {
            new.0[..2] > old.0[..2]
        } else {
            new >= old
        }
    }
}

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, lines) in [
            ("breaking", self.breaking.clone()),
            ("new", self.added.iter().map(|i| format!("+ {i}")).collect()),
        ] {
            writeln!(f, "{title}: {}", lines.len())?;
            lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

/// The modules of `pages` hold text, and no program names them.
fn items(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter(|item| !item.starts_with("pub mod fairlock::pages"))
}

/// Why a new item can break a program, if it is part of an old one.
fn reason_to_break(item: &str, old: &HashSet<&str>) -> Option<&'static str> {
    let path = path(item)?;
    let (parent, _) = path.rsplit_once("::")?;
    let has = |start: &str| {
        old.iter()
            .any(|line| line.starts_with(start) && self::path(line) == Some(parent))
    };
    let is_function = item.contains("fn ");
    let has_fields = || {
        let field = format!("pub {parent}::");
        old.iter().any(|line| line.starts_with(&field))
    };
    if has("pub trait ") || has("pub unsafe trait ") {
        Some("types outside of the crate implement this trait")
    } else if !is_function && has("pub enum ") {
        Some("a match on this enum names all its variants")
    } else if !is_function && has("pub struct ") && has_fields() {
        Some("a program may make this struct of its fields")
    } else {
        None
    }
}

/// The path of an item, without what follows it. `None` for impls, which have none.
fn path(item: &str) -> Option<&str> {
    let start = item.find("fairlock::")?;
    let is_impl = item.starts_with("impl") || item.contains(" impl");
    let path = &item[start..];
    let end = path
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .unwrap_or(path.len());
    (!is_impl).then(|| path[..end].trim_end_matches(':'))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u64; 3]);

impl Version {
    /// The numbers up to the first that is not zero.
    fn breaking_part(self) -> [u64; 3] {
        match self.0 {
            [0, 0, patch] => [0, 0, patch],
            [0, minor, _] => [0, minor, 0],
            [major, ..] => [major, 0, 0],
        }
    }
}

impl FromStr for Version {
    type Err = String;

    /// Without pre-releases, which promise nothing.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = text.split('.').map(str::parse).collect();
        numbers
            .ok()
            .and_then(|numbers| numbers.try_into().ok())
            .map(Version)
            .ok_or_else(|| format!("not a version: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
pub mod fairlock::pages::guide
pub enum fairlock::Closed
pub fairlock::Closed::One
#[non_exhaustive] pub enum fairlock::Open
pub fairlock::Open::One
pub struct fairlock::Plain
pub fairlock::Plain::field: u8
pub struct fairlock::Hidden
pub fn fairlock::Hidden::get(&self) -> u8
pub trait fairlock::Provider: core::marker::Send
pub fn fairlock::Provider::ask(&self)
";

    /// Whether the old list with this change may have each of these versions after 0.1.0 and 1.1.0.
    fn allowed(new: &str, versions: [(&str, &str); 4]) -> [bool; 4] {
        let changes = Changes::between(OLD, new);
        let version = |text: &str| text.parse().expect("a version");
        versions.map(|(old, new)| changes.allow(version(old), version(new)))
    }

    const VERSIONS: [(&str, &str); 4] = [
        ("0.1.0", "0.1.1"),
        ("0.1.0", "0.2.0"),
        ("1.1.0", "1.2.0"),
        ("1.1.0", "2.0.0"),
    ];

    #[track_caller]
    fn adding_breaks(item: &str, breaks: bool) {
        let changes = allowed(&format!("{OLD}{item}\n"), VERSIONS);
        assert_eq!(changes, [!breaks, true, !breaks, true], "{item}");
    }

    #[test]
    fn removed_and_changed_items_break() {
        let method = "pub fn fairlock::Hidden::get(&self) -> u8";
        for change in ["", "pub fn fairlock::Hidden::get(&self) -> u16"] {
            let new = OLD.replace(method, change);
            assert_eq!(allowed(&new, VERSIONS), [false, true, false, true]);
        }
        let new = OLD.replace(method, "");
        assert_eq!(
            Changes::between(OLD, &new).breaking,
            [format!("- {method}")]
        );
    }

    #[test]
    fn new_items_break_where_programs_name_all_of_them() {
        adding_breaks("pub fairlock::Closed::Two", true);
        adding_breaks("pub fairlock::Plain::other: u8", true);
        adding_breaks("pub fn fairlock::Provider::answer(&self)", true);
        adding_breaks("pub fairlock::Open::Two", false);
        adding_breaks("pub fairlock::Hidden::first: u8", false);
        adding_breaks("pub fn fairlock::Closed::count(&self) -> usize", false);
        adding_breaks("pub fn fairlock::Hidden::set(&mut self)", false);
        adding_breaks("impl core::marker::Copy for fairlock::Closed", false);
        adding_breaks("pub fn fairlock::Hidden::new(fairlock::Provider)", false);
    }

    #[test]
    fn new_items_raise_the_second_number_after_one() {
        let new = format!("{OLD}pub struct fairlock::New\n");
        let patches = [
            ("0.1.0", "0.1.0"),
            ("1.1.0", "1.1.1"),
            ("1.1.0", "1.2.0"),
            ("0.0.1", "0.0.1"),
        ];
        assert_eq!(allowed(&new, patches), [true, false, true, true]);
    }

    #[test]
    fn equal_lists_and_pages_ask_for_nothing() {
        let same = [
            ("0.1.0", "0.1.0"),
            ("1.1.0", "1.1.0"),
            ("1.1.0", "1.1.1"),
            ("0.1.1", "0.1.0"),
        ];
        let pages = OLD.replace("pages::guide", "pages::recipes");
        assert_eq!(allowed(&pages, same), [true, true, true, false]);
    }
}
