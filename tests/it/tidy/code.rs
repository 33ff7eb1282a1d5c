//! Finds the paths that Rust code names, without a full parser.

use std::{ops::Range, path::Path};

/// Every top-level module that the code names, with its position: after `crate::`, also in groups,
/// or after as many `super::` as lead to the root.
pub(super) fn paths_from_root(path: &Path, code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "crate::") {
        heads(code, at + "crate::".len(), &mut found);
    }
    // In an inline module, one more `super` is needed to reach the root; there the same path means
    // the file itself.
    let end = inline_module(code).unwrap_or(code.len());
    let up = "super::".repeat(depth(path));
    if !up.is_empty() {
        for at in words(&code[..end], &up) {
            if !code[..at].ends_with("super::") {
                heads(code, at + up.len(), &mut found);
            }
        }
    }
    found
}

/// The code without comments and the contents of strings. They become spaces, so that positions
/// stay the same.
pub(super) fn code_of(text: &str) -> String {
    let mut code = text.as_bytes().to_vec();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let blank = if rest.starts_with("//") {
            0..rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            0..rest.find("*/").map_or(rest.len(), |i| i + 2)
        } else if let Some(inside) = string_at(text, at) {
            inside
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        for byte in &mut code[at + blank.start..at + blank.end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        // A closing quote follows the contents of a string.
        at += blank.end + usize::from(blank.start > 0);
    }
    String::from_utf8(code).expect("only whole characters were replaced")
}

/// The contents of all string literals, with their positions.
pub(super) fn strings_of(text: &str) -> Vec<(usize, &str)> {
    let code = code_of(text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        // A quote that is no part of a comment or a string is still in the code.
        let is_open = code.as_bytes()[at] == b'"' || code[at..].starts_with("r#");
        match string_at(text, at).filter(|_| is_open) {
            Some(inside) => {
                found.push((at, &text[at + inside.start..at + inside.end]));
                at += inside.end + 1;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    found
}

/// The positions of `needle` as a separate word.
pub(super) fn words(text: &str, needle: &str) -> Vec<usize> {
    let ends_in_word = needle.ends_with(is_word);
    let is_separate = |at: &usize| {
        let after = text[at + needle.len()..].starts_with(is_word);
        !(text[..*at].ends_with(is_word) || ends_in_word && after)
    };
    text.match_indices(needle)
        .map(|(at, _)| at)
        .filter(is_separate)
        .collect()
}

/// How many `super` lead from a file's module to the crate root.
fn depth(path: &Path) -> usize {
    let parts = path.components().count() - 1;
    let stem = path.file_stem().unwrap();
    if stem == "mod" || stem == "lib" {
        parts - 1
    } else {
        parts
    }
}

/// The first name of the path that starts here, or of each path in the group that starts here.
fn heads(code: &str, at: usize, found: &mut Vec<(usize, String)>) {
    let start = at + (code[at..].len() - code[at..].trim_start().len());
    let Some(group) = code[start..].strip_prefix('{') else {
        let name: String = code[start..].chars().take_while(|c| is_word(*c)).collect();
        if !name.is_empty() && name != "super" {
            found.push((start, name));
        }
        return;
    };
    let mut depth = 0;
    let mut item = start + 1;
    for (i, c) in group.char_indices() {
        let here = start + 1 + i;
        match c {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                heads(code, item, found);
                item = here + 1;
                if c == '}' {
                    return;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

fn inline_module(code: &str) -> Option<usize> {
    words(code, "mod").into_iter().find(|at| {
        let rest = code[at + 3..].trim_start();
        rest.trim_start_matches(is_word)
            .trim_start()
            .starts_with('{')
    })
}

/// The range of the contents of the string or character literal that starts at `at`.
fn string_at(text: &str, at: usize) -> Option<Range<usize>> {
    let rest = &text[at..];
    if rest.starts_with('\'') {
        // A quote without a second one after one character belongs to a lifetime.
        let mut chars = rest.char_indices().skip(1);
        let (_, first) = chars.next()?;
        let end = match first {
            '\\' => {
                2 + rest[2..]
                    .char_indices()
                    .skip(1)
                    .find(|(_, c)| *c == '\'')?
                    .0
            }
            _ => chars.next().filter(|(_, c)| *c == '\'')?.0,
        };
        return Some(1..end);
    }
    if rest.starts_with('r') && !text[..at].ends_with(is_word) || rest.starts_with("br") {
        let hashes = rest.trim_start_matches(['b', 'r']);
        let count = hashes.len() - hashes.trim_start_matches('#').len();
        let open = rest.len() - hashes.len() + count + 1;
        if hashes[count..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(count));
            return Some(open..open + rest[open..].find(&close)?);
        }
    }
    let inside = rest.strip_prefix('"')?;
    let mut escaped = false;
    for (i, c) in inside.char_indices() {
        match c {
            '"' if !escaped => return Some(1..1 + i),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn code_and_paths_are_read_correctly() {
    let code = code_of(concat!(
        "use crate::{engine::{a, b}, key::K};\n",
        "// crate::comment::X\n",
        "let s = \"crate::string::\\\" X\"; let c = '\"'; fn f<'a>() {}\n",
        "let r = r#\"crate::raw \" X\"#; // ' \"\n",
        "pub(crate) fn g() { crate::store::h(); $crate::error::E; my_crate::x(); }\n",
        "use super::super::guard::G; use super::sibling;\n",
        "mod tests { use super::super::manager::M; }\n",
    ));
    let named = |path| -> Vec<String> {
        paths_from_root(Path::new(path), &code)
            .into_iter()
            .map(|(_, name)| name)
            .collect()
    };
    assert_eq!(
        named("src/lock/mutex.rs"),
        ["engine", "key", "store", "error", "guard"]
    );
    assert_eq!(
        named("src/lock/mod.rs"),
        ["engine", "key", "store", "error", "sibling"]
    );
    assert_eq!(depth(Path::new("src/lib.rs")), 0);
    let strings = strings_of("// \"no\"\nf(\"a\\\"b\", '\"', r#\"c\"d\"#, \"e\");");
    let strings: Vec<&str> = strings.into_iter().map(|(_, text)| text).collect();
    assert_eq!(strings, ["a\\\"b", "c\"d", "e"]);
    assert_eq!(words("R1 R11 R1.", "R1"), [0, 7]);
}
