//! The rules of the command line, `cli/`. On no store: the tests read the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::circles::{arrows_of_the_command_line, circles};
use super::code::{code_of, strings_of};
use super::{is_unit_test, none, read, root};

/// Longer files and functions do more than one thing.
const MOST_LINES_OF_A_FILE: usize = 400;
const MOST_LINES_OF_A_FUNCTION: usize = 50;

/// rustfmt wraps code, and leaves comments and strings as they are.
const WIDTH: usize = 100;

/// The library forbids it. Here three files may have it, each with its reason: no safe call blocks a
/// signal for a thread, none sends a real-time signal, and none has a child ask for a signal at the
/// death of its parent.
#[test]
fn unsafe_code_of_the_command_line_is_in_three_places() {
    let main = fs::read_to_string(root().join("cli/src/main.rs")).expect("cli/src/main.rs");
    assert!(
        code_of(&main).contains("#![deny(unsafe_code)]"),
        "cli/src/main.rs does not deny unsafe code"
    );
    let files = read("cli/src", "rs");
    let with_unsafe: Vec<String> = files
        .iter()
        .filter(|(_, text)| code_of(text).contains("allow(unsafe_code"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(with_unsafe.len() <= 3, "{with_unsafe:?} have unsafe code");
}

#[test]
fn files_and_functions_of_the_command_line_are_short() {
    let mut wrong = Vec::new();
    for (path, text) in read("cli/src", "rs") {
        // Unit tests do not count.
        if is_unit_test(&path) {
            continue;
        }
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        let lines = text.lines().count();
        if lines > MOST_LINES_OF_A_FILE {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        for (first, lines) in functions(text) {
            if lines > MOST_LINES_OF_A_FUNCTION {
                wrong.push(format!("{}:{first}: {lines} lines", path.display()));
            }
        }
    }
    none(&wrong, "these files or functions are too long");
}

/// A room is a file or a folder, with all that is in it. The file of a folder's contents is no room
/// of that folder.
#[test]
fn no_rooms_of_a_folder_name_each_other_in_a_circle() {
    let arrows = arrows_of_the_command_line();
    let folders: BTreeSet<&Path> = arrows.keys().filter_map(|file| file.parent()).collect();
    assert!(folders.len() > 5, "{folders:?} are too few to be all");
    let mut wrong = Vec::new();
    for folder in folders {
        let mut rooms: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (from, named) in &arrows {
            let Some(from) = room(folder, from) else {
                continue;
            };
            let named = named.iter().filter_map(|to| room(folder, to));
            let others = named.filter(|to| *to != from).collect::<Vec<_>>();
            rooms.entry(from).or_default().extend(others);
        }
        wrong.extend(circles(&rooms).iter().map(|circle| format!("{circle:?}")));
    }
    none(&wrong, "these rooms name each other in a circle");
}

/// The room of a folder that a file is in.
fn room(folder: &Path, file: &Path) -> Option<PathBuf> {
    let first = file.strip_prefix(folder).ok()?.components().next()?;
    let room = Path::new(first.as_os_str()).with_extension("");
    (!matches!(room.to_str(), Some("mod" | "main"))).then(|| folder.join(room))
}

/// The program prints the library's messages, too. Its users know no `Builder`.
#[test]
fn no_message_names_a_method_of_a_builder() {
    let mut wrong = Vec::new();
    for dir in ["src", "cli/src"] {
        for (path, text) in read(dir, "rs") {
            for (at, string) in strings_of(&text) {
                if string.contains("Builder::") || string.contains("LockOptions::") {
                    let line = text[..at].lines().count();
                    wrong.push(format!("{}:{line}: {string}", path.display()));
                }
            }
        }
    }
    none(&wrong, "these messages name methods of the library");
}

#[test]
fn lines_of_the_command_line_fit_a_window() {
    let mut wrong = Vec::new();
    for (path, text) in read("cli", "rs") {
        for (number, line) in text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH {
                wrong.push(format!("{}:{}: {width}", path.display(), number + 1));
            }
        }
    }
    none(&wrong, "these lines are too wide");
}

#[test]
fn every_command_has_a_section_in_the_document() {
    let page = fs::read_to_string(root().join("docs/COMMAND_LINE.md")).expect("the document");
    let code = fs::read_to_string(root().join("cli/src/command/mod.rs")).expect("the commands");
    let modules: Vec<&str> = code
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .filter(|module| has_arguments(module))
        .collect();
    assert!(modules.len() > 8, "{modules:?} are too few to be all");
    let mut wrong = Vec::new();
    for module in modules {
        let command = module.replace('_', "-");
        let has_section = page.contains(&format!("\n## fairlock {command}\n"));
        // These two share a section.
        if !has_section && !matches!(module, "completions" | "man") {
            wrong.push(command.clone());
        }
        if !page.contains(&format!("| [`fairlock {command}`](#")) {
            wrong.push(format!("{command}, in the table"));
        }
    }
    none(&wrong, "docs/COMMAND_LINE.md lacks these commands");
}

/// Whether a module is a command, and not what several commands share.
fn has_arguments(module: &str) -> bool {
    let folder = root().join("cli/src/command");
    let files = [
        folder.join(format!("{module}.rs")),
        folder.join(module).join("mod.rs"),
    ];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok());
    text.is_some_and(|text| text.contains("Args)]"))
}

/// The functions of a formatted file: the number of the first line, and how many lines there are
/// from that one to the closing brace.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match open {
            Some((first, at)) if indent == at && line.trim_start().starts_with('}') => {
                found.push((first + 1, number - first + 1));
                open = None;
            }
            None if begins_function(line) => open = Some((number, indent)),
            _ => {}
        }
    }
    found
}

/// Whether a function with a body of its own lines begins here.
fn begins_function(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "fn");
    let is_modifier = |word: &&str| word.starts_with("pub") || matches!(*word, "const" | "async");
    at.is_some_and(|at| words[..at].iter().all(is_modifier)) && !line.ends_with('}')
}

#[test]
fn functions_are_counted() {
    let text = "\
fn short() {}

impl A {
    pub(crate) fn long(
        &self,
    ) -> u8 {
        match self.0 {
            0 => 1,
        }
    }

    const fn two() {
    }
}
";
    assert_eq!(functions(text), [(4, 7), (12, 2)]);
}
