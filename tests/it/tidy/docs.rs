//! Compares the pages in docs/ with the code.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{code::code_of, none, place, read, root};

#[test]
fn log_lines_are_documented_with_their_level() {
    let page = fs::read_to_string(root().join("docs/OPERATIONS.md")).expect("docs/OPERATIONS.md");
    let mut documented: Vec<&str> = page.lines().filter(|line| is_log_row(line)).collect();
    let mut wrong = Vec::new();
    for (path, text) in read("src", "rs") {
        // `code_of` has blanked the strings, so the message is read from the text at the same
        // position.
        for (at, _) in code_of(&text).match_indices("log::") {
            let Some((level, rest)) = text[at + "log::".len()..].split_once("!(") else {
                continue;
            };
            if !level.chars().all(|c| c.is_ascii_lowercase()) {
                continue;
            }
            // A program's logger may block, so no thread of ours calls it.
            let words = rest.trim_start().strip_prefix("logger: Logger,");
            let Some(rest) = words.and_then(|words| words.trim_start().strip_prefix('"')) else {
                wrong.push(format!(
                    "{}: `logger: Logger` and a text",
                    place(&path, &text, at)
                ));
                continue;
            };
            let words = rest.split('"').next().unwrap();
            let row = format!("| {level} | `{}` |", without_arguments(words));
            let before = documented.len();
            documented.retain(|line| !line.starts_with(&row));
            if documented.len() == before {
                wrong.push(format!(
                    "{}: docs/OPERATIONS.md has no row {row:?}",
                    place(&path, &text, at)
                ));
            }
        }
    }
    wrong.extend(
        documented
            .iter()
            .map(|row| format!("docs/OPERATIONS.md: nothing in src logs {row:?}")),
    );
    none(
        &wrong,
        "docs/OPERATIONS.md and the log messages in src differ",
    );
}

/// All Rust code in `docs/` is compiled with the documentation, which has a module for each page.
#[test]
fn pages_are_part_of_the_documentation() {
    let modules = fs::read_to_string(root().join("src/pages.rs")).expect("src/pages.rs");
    let pages = read("docs", "md");
    assert!(pages.len() > 3, "docs has {} pages", pages.len());
    let absent: Vec<_> = pages
        .iter()
        .map(|(path, _)| format!("include_str!(\"../{}\")", path.display()))
        .filter(|include| !modules.contains(include))
        .collect();
    none(&absent, "src/pages.rs lacks");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for (path, text) in &pages() {
        for (at, target) in targets(text) {
            let (file, section) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let file = if file.is_empty() {
                path.clone()
            } else {
                path.with_file_name(file)
            };
            // Another page is read from the link's target, relative to this file.
            let other = if file == *path {
                Ok(text.clone())
            } else {
                fs::read_to_string(root().join(&file))
            };
            let sections = |text: &str| {
                text.lines()
                    .filter(|l| l.starts_with('#'))
                    .map(anchor)
                    .collect::<Vec<_>>()
            };
            match other {
                Err(e) => wrong.push(format!("{}: {target}: {e}", place(path, text, at))),
                Ok(other)
                    if !section.is_empty() && !sections(&other).contains(&section.to_owned()) =>
                {
                    wrong.push(format!(
                        "{}: {target}: there is no such section",
                        place(path, text, at)
                    ));
                }
                Ok(_) => {}
            }
        }
    }
    none(&wrong, "these links have no target");
}

/// The targets of a page's links, with their places: those that stand in a link, and those that are
/// defined for links by name.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let inline = text.match_indices("](").map(|(at, mark)| {
        let rest = &text[at + mark.len()..];
        (at, rest.split(')').next().unwrap())
    });
    let defined = text.match_indices("\n[").filter_map(|(at, _)| {
        let line = text[at + 1..].lines().next()?;
        Some((at + 1, line.split_once("]: ")?.1))
    });
    inline.chain(defined).collect()
}

/// A page of `docs/` calls its link to another one by the target. So src/pages/links.md can define it
/// anew, and the page in the documentation of the crate leads to another page there.
#[test]
fn pages_lead_to_each_other_in_the_documentation_too() {
    let links = fs::read_to_string(root().join("src/pages/links.md")).expect("src/pages/links.md");
    let mut unused: Vec<&str> = links.lines().collect();
    let mut wrong = Vec::new();
    for (path, text) in &read("docs", "md") {
        for (at, target) in targets(text) {
            let (file, section) = target.split_once('#').unwrap_or((target, ""));
            let Some(page) = file.strip_suffix(".md").filter(|page| !page.contains('/')) else {
                continue;
            };
            let mut needed = format!("[{target}]: crate::pages::{}", page.to_lowercase());
            if !section.is_empty() {
                needed = format!("{needed}#{section}");
            }
            unused.retain(|line| *line != needed);
            let is_named = text.contains(&format!("][{target}]"))
                && text[at..].starts_with(&format!("[{target}]: {target}\n"));
            if !is_named || !links.lines().any(|line| line == needed) {
                wrong.push(format!(
                    "{}: wanted are [..][{target}], below [{target}]: {target}, and in src/pages/links.md {needed}",
                    place(path, text, at)
                ));
            }
        }
    }
    for (path, text) in &read("docs", "md") {
        for (at, mark) in text.match_indices("][") {
            let target = text[at + mark.len()..].split(']').next().unwrap();
            let defined = format!("\n[{target}]: {target}\n");
            if target.contains(".md") && !text.contains(&defined) {
                wrong.push(format!("{}: undefined: {target}", place(path, text, at)));
            }
        }
    }
    let unused = unused.iter().map(|line| format!("unused: {line}"));
    wrong.extend(unused);
    none(&wrong, "these links are dead in the documentation");
}

/// Every page of the repository, with its path from the root.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages: Vec<_> = ["docs", "tests", "benches", "cli"]
        .into_iter()
        .flat_map(|dir| read(dir, "md"))
        .collect();
    for entry in fs::read_dir(root()).expect("the root") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).expect("a page");
            pages.push((path.file_name().expect("a name").into(), text));
        }
    }
    pages
}

/// These recipes are the code of examples, which tests run under pauses and crashes.
#[test]
fn tested_recipes_in_the_guide_are_those_of_the_examples() {
    let guide = fs::read_to_string(root().join("docs/GUIDE.md")).unwrap();
    for file in ["payment/pay.rs", "rate_limiter/limiter.rs"] {
        let example = fs::read_to_string(root().join("examples").join(file)).unwrap();
        let (_, code) = example.split_once("\n\n").expect("a head and code");
        let code = code.replace("pub(crate) ", "pub ");
        assert!(guide.contains(code.trim()), "not in GUIDE.md:\n{code}");
    }
}

/// By default, MySQL and MariaDB count the rows that changed. By that count a second claim looks like a
/// newer holder.
#[test]
fn sql_recipes_say_which_rows_count() {
    let mut files = read("docs", "md");
    files.extend(read("src", "rs"));
    files.extend(read("examples", "rs"));
    let with_claims: Vec<_> = files
        .iter()
        .filter(|(_, text)| text.contains("fence = :f") && text.contains("fence <= :f"))
        .collect();
    assert!(with_claims.len() > 5, "{} files", with_claims.len());
    let silent: Vec<_> = with_claims
        .into_iter()
        .filter(|(_, text)| !text.contains("MySQL") || !text.contains("found"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    none(
        &silent,
        "these have SQL that counts rows, and not a word on which",
    );
}

/// `.ci/fence-sql` runs the files on databases, and compares their answers.
#[test]
fn documented_sql_was_tried_on_databases() {
    let page = |name| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let page = page("SAFETY.md") + &page("GUIDE.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = [":f", ":id", ":new"]
        .iter()
        .fold(page, |page, name| page.replace(name, "N"));
    // A statement ends where its code does, or where a comment begins.
    let statements = ["UPDATE accounts", "INSERT "].map(|verb| {
        page.match_indices(verb)
            .map(|(at, _)| page[at..].split(['`', ';', '-']).next().unwrap().trim())
            .collect::<Vec<_>>()
    });
    let statements = statements.concat();
    assert!(statements.len() >= 6, "{statements:?}");
    let tried: String = read("examples/fencing/sql", "sql")
        .into_iter()
        .map(|(_, text)| text.replace(|c: char| c.is_ascii_digit(), "N"))
        .collect();
    let tried = tried.replace("NN", "N");
    let absent: Vec<_> = statements
        .iter()
        .filter(|statement| statement.split(" … ").any(|part| !tried.contains(part)))
        .map(|statement| (*statement).to_owned())
        .collect();
    none(&absent, "no file in examples/fencing/sql has");
}

/// Rust prints the `Debug` form of an error that `main` returns, which is not for users. That of
/// `fairlock::Error` is.
#[test]
fn programs_in_the_docs_print_errors_for_people() {
    let mut pages = read("docs", "md");
    pages.extend(read("src", "rs"));
    pages.extend(read("examples", "rs"));
    let readme = Path::new("README.md");
    pages.push((
        readme.to_owned(),
        fs::read_to_string(root().join(readme)).unwrap(),
    ));
    let mut wrong = Vec::new();
    for (path, text) in &pages {
        for (at, _) in text.match_indices("fn main() -> ") {
            let line = text[..at].lines().next_back().unwrap_or_default();
            let is_hidden = line.trim_start_matches(['/', '!', ' ']).starts_with("# ");
            let returned = &text[at + "fn main() -> ".len()..];
            let is_for_people = ["ExitCode ", "fairlock::Result<()> "]
                .iter()
                .any(|fit| returned.starts_with(fit));
            if !is_hidden && !is_for_people {
                wrong.push(place(path, text, at));
            }
        }
    }
    none(&wrong, "these programs print `Debug` on an error");
}

/// A row of the table of log messages: a level, then the message.
fn is_log_row(line: &str) -> bool {
    let levels = ["error", "warn", "info", "debug", "trace"];
    levels.iter().any(|level| {
        line.strip_prefix(&format!("| {level} | "))
            .is_some_and(|rest| rest.starts_with('`'))
    })
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// A format string with `…` for its arguments.
fn without_arguments(format: &str) -> String {
    let mut words = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('{') {
        words.push_str(before);
        words.push('…');
        rest = after
            .split_once('}')
            .expect("a format string closes its braces")
            .1;
    }
    words + rest
}
