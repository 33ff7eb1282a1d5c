//! docs/SAFETY.md has the promises. The tests of a promise are named after it, and tests/README.md
//! lists them.

use std::fs;

use super::{
    code::{code_of, words},
    none, place, read, root,
};

/// A test whose name begins with the number of a promise or a rule, as in `p5_` or `r12_`.
struct PromiseTest {
    name: String,
    promise: Option<u32>,
    place: String,
    /// Whether it runs on a redis-server, and not only in memory or against a scripted server.
    on_server: bool,
}

#[test]
fn every_promise_lists_exactly_its_tests() {
    let tests = tests();
    let lists = lists();
    let mut listed = vec![false; tests.len()];
    let mut wrong = Vec::new();
    let promises = promises();
    if !lists.iter().map(|(promise, _)| promise).eq(&promises) {
        wrong.push(format!(
            "there are lists of other promises than {promises:?}"
        ));
    }
    for (promise, list) in &lists {
        let names = names(list);
        if names.is_empty() {
            wrong.push(format!("P{promise} has no tests"));
        }
        for (_, name, cut) in names {
            let is_meant =
                |test: &PromiseTest| test.name == name || cut && test.name.starts_with(name);
            let meant: Vec<usize> = (0..tests.len()).filter(|i| is_meant(&tests[*i])).collect();
            match meant[..] {
                [one] if tests[one].promise.is_none_or(|n| n == *promise) => listed[one] = true,
                [one] => wrong.push(format!("{} is in the list of P{promise}", tests[one].name)),
                _ => wrong.push(format!("P{promise}: {name} matches {} tests", meant.len())),
            }
        }
    }
    let missing = tests
        .iter()
        .zip(listed)
        .filter(|(test, listed)| test.promise.is_some() && !listed);
    wrong.extend(missing.map(|(test, _)| format!("{}: {} is not listed", test.place, test.name)));
    none(
        &wrong,
        "tests/README.md, docs/SAFETY.md and the tests differ",
    );
}

#[test]
fn every_promise_is_proved_on_a_real_server() {
    let tests = tests();
    let proved = |promise: &u32| {
        tests
            .iter()
            .any(|test| test.promise == Some(*promise) && test.on_server)
    };
    let promises = promises();
    let unproved: Vec<String> = promises
        .iter()
        .filter(|n| !proved(n))
        .map(|n| format!("P{n}"))
        .collect();
    none(&unproved, "promises without a test on a real server");
    let unknown = tests
        .iter()
        .filter(|test| test.promise.is_some_and(|n| !promises.contains(&n)));
    none(
        &unknown
            .map(|test| format!("{}: {}", test.place, test.name))
            .collect::<Vec<_>>(),
        "tests are named after promises that do not exist",
    );
}

/// The numbers of the promises, from the headings of docs/SAFETY.md.
fn promises() -> Vec<u32> {
    let page = fs::read_to_string(root().join("docs/SAFETY.md")).expect("docs/SAFETY.md");
    let number = |line: &str| line.strip_prefix("### P")?.split(' ').next()?.parse().ok();
    page.lines().filter_map(number).collect()
}

/// The lists of tests in tests/README.md, each with the number of its promise.
fn lists() -> Vec<(u32, String)> {
    let page = fs::read_to_string(root().join("tests/README.md")).expect("tests/README.md");
    let (_, section) = page
        .split_once("\n## Tests of each promise\n")
        .expect("the section with the tests of each promise");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lists = section.split("\n- **P").skip(1).map(|list| {
        let (promise, names) = list.split_once(":**").expect("a number and names");
        (promise.parse().expect("a number"), names.to_owned())
    });
    lists.collect()
}

fn tests() -> Vec<PromiseTest> {
    let mut tests = Vec::new();
    let mut wrong = Vec::new();
    for (path, text) in read("tests/it", "rs") {
        let code = code_of(&text);
        let on_both = path.starts_with("tests/it/behaviour");
        for (at, name, _) in names(&code) {
            let Some(before) = code[..at].strip_suffix("fn ") else {
                continue;
            };
            let place = place(&path, &code, at);
            // Outside the suite of both stores, a function without #[test] would never run.
            if !on_both && !before.trim_end().ends_with("#[test]") {
                wrong.push(format!("{place}: {name} is not a test"));
            }
            let body = &code[at..][..code[at..].find("\n}").unwrap_or(code.len() - at)];
            tests.push(PromiseTest {
                name: name.to_owned(),
                promise: name
                    .strip_prefix('p')
                    .and_then(|n| n.split('_').next()?.parse().ok()),
                place,
                on_server: on_both || !words(body, "Server::").is_empty(),
            });
        }
    }
    none(&wrong, "only tests may be named after a promise or a rule");
    tests
}

/// The names of promise and rule tests in a text: the position of each, its name, and whether `…`
/// cuts it short.
fn names(text: &str) -> Vec<(usize, &str, bool)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let starts = text
        .match_indices(['p', 'r'])
        .map(|(at, _)| at)
        .filter(|at| !text[..*at].ends_with(is_word));
    let found = starts.filter_map(|at| {
        let end = text[at..]
            .find(|c| !is_word(c))
            .map_or(text.len(), |length| at + length);
        let name = &text[at..end];
        let (number, claim) = name[1..].split_once('_')?;
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        (is_number && !claim.is_empty()).then(|| (at, name, text[end..].starts_with('…')))
    });
    found.collect()
}

#[test]
fn test_names_are_distinguished_from_other_words() {
    let text = "`tests/run.sh -- p5_` runs `p5_a_crash`, p10_bad…, r12_late… and no up5_x, p_x, p5, pages or r2d2_x.";
    let found: Vec<_> = names(text)
        .into_iter()
        .map(|(_, name, cut)| (name, cut))
        .collect();
    assert_eq!(
        found,
        [("p5_a_crash", false), ("p10_bad", true), ("r12_late", true)]
    );
}
