//! Mutants: lines of the library that are broken, one at a time, and the tests that find each.
//!
//!     tests/run.sh --test mutants                          all of them
//!     tests/run.sh --test mutants -- part_of_a_name        some of them
//!     tests/run.sh --test mutants -- --write               writes the copy, and builds and runs nothing
//!
//! `table.txt` has the lines, and says how they are written there. They are broken in a copy of the
//! tree, in the target directory. A line of Rust becomes a choice there between itself and its mutant,
//! so that one build has them all: the variable MUTANT, without the prefix that tests remove from their
//! children, names the mutant of a process. A line of a script is replaced when the scripts are put
//! together.
//!
//! The run fails if a line does not occur exactly once, if a test is red without a mutant, and if a
//! mutant is not found by each of its tests.

mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use fairlock_tests::ROOT;
use table::Mutant;

/// For all tests of one target without a mutant, and for one test with a mutant, in seconds. A test
/// that hangs is red: it would end the whole suite by its limit.
const ALL_WITHIN: &str = "900";
const ONE_WITHIN: &str = "120";

const NOT_FOUND: &str = "NOT FOUND";

/// In `src/script/registry.rs`: a script has all its parts, and gets its digest.
const SCRIPT_IS_COMPLETE: &str = "let sha = sha1_hex(&source);";

/// The module that makes the choice, in the copy alone.
const MODULE: &str = r#"
static MUTANT: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| std::env::var("MUTANT").unwrap_or_default());

pub(crate) fn on(name: &str) -> bool {
    *MUTANT == name
}

pub(crate) fn script(source: String) -> String {
    match SCRIPTS.iter().find(|(name, ..)| on(name)) {
        Some((_, line, becomes)) => source.replace(line, becomes),
        None => source,
    }
}
"#;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    let tree = dir.join("tree");
    let mutants = table::read();
    copy_tracked_files(&tree, &broken_files(&mutants));
    println!("mutants: {} lines in {}", mutants.len(), tree.display());
    if words == ["--write"] {
        return ExitCode::SUCCESS;
    }
    let is_named = |mutant: &&Mutant| words.iter().any(|part| mutant.name.contains(part.as_str()));
    let chosen = mutants.iter();
    let chosen: Vec<_> = chosen.filter(|m| words.is_empty() || is_named(m)).collect();
    let mut tests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (target, test) in chosen.iter().flat_map(|mutant| &mutant.red) {
        tests.entry(target).or_default().insert(test);
    }
    let binaries = build(&tree, &dir.join("build"), tests.keys());
    for (target, tests) in &tests {
        assert_green(tests_of(&binaries, target, &tree, ALL_WITHIN), tests);
    }
    let mut survived = 0;
    for mutant in &chosen {
        for (target, test) in &mutant.red {
            let started = Instant::now();
            let mut run = tests_of(&binaries, target, &tree, ONE_WITHIN);
            let ended = run.arg(test).env("MUTANT", &mutant.name).output();
            let found = match ended.expect("the test runs").status.code() {
                Some(0) => NOT_FOUND,
                // Those of `timeout`.
                Some(124 | 137) => "red, it hung",
                _ => "red",
            };
            survived += usize::from(found == NOT_FOUND);
            let (name, seconds) = (&mutant.name, started.elapsed().as_secs_f64());
            println!("{name:<64} {seconds:>6.1} s  {found}: {target} {test}");
        }
    }
    println!(
        "mutants: {} were tried, {survived} times a test found nothing",
        chosen.len()
    );
    ExitCode::from(u8::from(survived > 0))
}

/// The files of the copy that differ, by their paths. Panics if a line is not there once.
fn broken_files(mutants: &[Mutant]) -> BTreeMap<String, String> {
    let mut broken = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut scripts = Vec::new();
    for mutant in mutants {
        let text = broken.entry(mutant.file.clone());
        let text = text.or_insert_with(|| table::source(&mutant.file));
        if let Err(why) = mutant.check(text) {
            wrong.push(why);
        } else if mutant.is_of_script() {
            scripts.push(mutant.replacement());
        } else {
            *text = mutant.choice_in(text);
        }
    }
    assert!(
        wrong.is_empty(),
        "lines of table.txt have changed:\n{}",
        wrong.join("\n")
    );
    let registry = "src/script/registry.rs";
    let text = table::source(registry);
    assert_eq!(
        text.matches(SCRIPT_IS_COMPLETE).count(),
        1,
        "{SCRIPT_IS_COMPLETE}"
    );
    let first = "let source = crate::mutants::script(source);";
    let text = text.replace(SCRIPT_IS_COMPLETE, &format!("{first} {SCRIPT_IS_COMPLETE}"));
    broken.insert(registry.to_owned(), text);
    let root = "src/lib.rs";
    broken.insert(
        root.to_owned(),
        format!("{}\nmod mutants;\n", table::source(root)),
    );
    let module = format!("const SCRIPTS: &[(&str, &str, &str)] = &{scripts:?};\n{MODULE}");
    broken.insert("src/mutants.rs".to_owned(), module);
    broken
}

/// Makes the copy. Writes only what has changed, so that cargo builds only that again.
fn copy_tracked_files(tree: &Path, broken: &BTreeMap<String, String>) {
    let mut git = Command::new("git");
    let git = git.args(["ls-files", "-z"]).current_dir(ROOT).output();
    let tracked = String::from_utf8(git.expect("git lists the files").stdout);
    let tracked = tracked.expect("names are text");
    let list = tree.with_extension("list");
    if fs::read_to_string(&list).ok().as_ref() != Some(&tracked) {
        let _ = fs::remove_dir_all(tree);
    }
    let write = |file: &str, text: &[u8]| {
        let to = tree.join(file);
        if fs::read(&to).ok().as_deref() != Some(text) {
            fs::create_dir_all(to.parent().expect("it is in the tree")).expect("a directory");
            fs::write(&to, text).expect("a file of the copy");
        }
    };
    for file in tracked
        .split_terminator('\0')
        .filter(|file| !broken.contains_key(*file))
    {
        // One that is deleted and not committed is still listed.
        if let Ok(text) = fs::read(Path::new(ROOT).join(file)) {
            write(file, &text);
        }
    }
    broken
        .iter()
        .for_each(|(file, text)| write(file, text.as_bytes()));
    fs::write(list, tracked).expect("the list of the copy");
}

/// Builds these targets of the copy once. Returns their binaries.
fn build<'a>(
    tree: &Path,
    into: &Path,
    targets: impl Iterator<Item = &'a &'a str>,
) -> BTreeMap<String, PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo runs this"));
    cargo.args(["test", "--no-run", "--workspace", "--all-features"]);
    // As tests/run.sh has the simulators.
    cargo.args(["--config", "profile.test.package.fairlock.opt-level=1"]);
    for target in targets {
        match *target {
            "lib" => cargo.arg("--lib"),
            other => cargo.args(["--test", other]),
        };
    }
    cargo
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", into)
        .env("RUSTFLAGS", "-Awarnings");
    assert!(
        cargo.status().expect("cargo runs").success(),
        "the copy cannot be built"
    );
    // Nothing is left to build. It says once more where the binaries are.
    let said = cargo
        .stderr(Stdio::piped())
        .output()
        .expect("cargo runs")
        .stderr;
    let said = String::from_utf8(said).expect("paths are text");
    let paths = said.lines().filter(|line| line.contains("Executable"));
    let paths = paths.filter_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'));
    let named = paths.filter_map(|path| {
        let (name, _) = Path::new(path).file_name()?.to_str()?.rsplit_once('-')?;
        let target = if name == "fairlock" { "lib" } else { name };
        Some((target.to_owned(), tree.join(path)))
    });
    named.collect()
}

/// Runs tests of a target as cargo does. Its limit also ends the processes that they have started.
fn tests_of(
    binaries: &BTreeMap<String, PathBuf>,
    target: &str,
    tree: &Path,
    limit: &str,
) -> Command {
    let package = match target {
        "lib" => tree.to_owned(),
        "cli" => tree.join("cli"),
        _ => tree.join("tests"),
    };
    let binary = binaries
        .get(target)
        .unwrap_or_else(|| panic!("cargo built no {target}"));
    let mut run = Command::new("timeout");
    run.args(["--kill-after=10", limit])
        .arg(binary)
        .arg("--exact");
    run.current_dir(package)
        .env_remove("FAIRLOCK_TEST_TIMES")
        .env_remove("MUTANT");
    run
}

/// Each of these tests exists, and passes without a mutant.
fn assert_green(mut run: Command, tests: &BTreeSet<&str>) {
    let ended = run.args(tests).output().expect("the tests run");
    let said = String::from_utf8_lossy(&ended.stdout);
    let all_passed = said.contains(&format!("test result: ok. {} passed", tests.len()));
    assert!(
        all_passed,
        "without a mutant, not all of {tests:#?} are there and pass:\n{said}"
    );
}
