//! The rules of this repository as tests, because no contributor remembers them all. On no store:
//! the tests read the sources.

mod circles;
mod code;
mod command_line;
mod docs;
mod faults;
mod lengths;
mod names;
mod promises;
mod sleeps;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use fairlock_tests::ROOT;

use code::{code_of, paths_from_root, words};

/// The layers of `src`, top to bottom; a module may name those below it and in its own row.
/// Every other file in `src` is a leaf, below them all, and leaves may name each other.
const LAYERS: &[&[&str]] = &[
    &["lib"],
    &["inspect"],
    &["lock"],
    &["guard", "waiter"],
    &["lease"],
    &["manager", "builder", "detached"],
    &["servers"],
    &["endpoint", "memory"],
    &["local"],
    &["engine"],
    &["store"],
    &["script"],
];

/// The simulator is outside the layers: it may name every module, and no module names it.
const OUTSIDE: &[&str] = &["sim"];

/// Whether a file of a crate has unit tests alone. A unit test may name whatever it needs.
fn is_unit_test(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str());
    (path.starts_with("src") || path.starts_with("cli/src"))
        && name.is_some_and(|name| name == "tests" || name.ends_with("_tests"))
}

#[test]
fn arrows_run_down() {
    let mut wrong = Vec::new();
    for (path, text) in read("src", "rs") {
        let from = module_of(&path);
        if OUTSIDE.contains(&from.as_str()) || is_unit_test(&path) {
            continue;
        }
        let code = code_of(&text);
        for (at, to) in paths_from_root(&path, &code) {
            let place = place(&path, &code, at);
            if OUTSIDE.contains(&to.as_str()) {
                wrong.push(format!(
                    "{place}: {from} names {to}, which is outside the layers"
                ));
            } else if !is_module(&to) {
                if from != "lib" {
                    wrong.push(format!(
                        "{place}: {to} is named through lib, which is above it"
                    ));
                }
            } else if layer(&to) < layer(&from) {
                wrong.push(format!("{place}: {from} names {to}, which is above it"));
            }
        }
    }
    none(&wrong, "arrows run up");
}

#[test]
fn redis_is_named_only_by_stores_and_scripts() {
    let mut wrong = Vec::new();
    for (path, text) in read("src", "rs") {
        if matches!(module_of(&path).as_str(), "store" | "script") {
            continue;
        }
        let code = code_of(&text);
        for name in ["redis::", "r2d2::"] {
            for at in words(&code, name) {
                wrong.push(format!("{}: {name}", place(&path, &code, at)));
            }
        }
    }
    none(&wrong, "only src/store and src/script may name these");
}

#[test]
fn only_engine_and_stores_read_the_clock() {
    let mut wrong = Vec::new();
    for (path, text) in read("src", "rs") {
        let module = module_of(&path);
        if matches!(module.as_str(), "engine" | "store") || OUTSIDE.contains(&module.as_str()) {
            continue;
        }
        let code = code_of(&text);
        // Unit tests may read the clock: they need an instant to start from.
        let end = code.find("#[cfg(test)]").unwrap_or(code.len());
        for name in [
            "Instant::now",
            "SystemTime::now",
            "elapsed(",
            "sleep(",
            "clock_gettime",
        ] {
            for at in words(&code[..end], name) {
                wrong.push(format!("{}: {name}", place(&path, &code, at)));
            }
        }
    }
    none(
        &wrong,
        "only src/engine and src/store may read the clock or sleep",
    );
}

#[test]
fn only_the_servers_and_the_simulator_are_hidden_from_the_docs() {
    let mut wrong = Vec::new();
    for (path, text) in read("src", "rs") {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, _) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| **line == "#[doc(hidden)]")
        {
            let before = lines[at.saturating_sub(1)];
            let reasons = ["unstable-servers", "fairlock_fuzzing"];
            if !reasons.iter().any(|reason| before.contains(reason)) {
                wrong.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    }
    none(&wrong, "these are public, and no page has them");
}

#[test]
fn unsafe_code_is_forbidden() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    assert!(
        code_of(&lib).contains("#![forbid(unsafe_code)]"),
        "src/lib.rs does not forbid unsafe code"
    );
}

#[test]
fn scripts_have_a_complete_header() {
    let scripts = read("src/script", "lua");
    assert!(!scripts.is_empty(), "src/script has no .lua file");
    let mut wrong = Vec::new();
    for (path, text) in scripts {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let well_formed = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_lowercase());
        if !name
            .split_once('_')
            .is_some_and(|(family, verb)| well_formed(family) && verb.split('_').all(well_formed))
        {
            wrong.push(format!("{}: not named <family>_<verb>.lua", path.display()));
        }
        let header: Vec<_> = text.lines().take_while(|l| l.starts_with("--")).collect();
        for word in ["Purpose", "KEYS", "ARGV", "Returns"] {
            if words(&header.join("\n"), word).is_empty() {
                wrong.push(format!("{}: its header has no {word}", path.display()));
            }
        }
    }
    none(
        &wrong,
        "a script's header must have its purpose, KEYS, ARGV and returns",
    );
}

#[test]
fn default_build_has_no_async_runtime() {
    let tree = |network: &[&str]| {
        Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["tree", "-e", "normal", "--prefix", "none"])
            .args(network)
            .current_dir(root())
            .output()
            .expect("cargo can be run")
    };
    let mut output = tree(&["--offline"]);
    // Offline, the tree lacks crates of other platforms if they were never fetched. Then try
    // online.
    if !output.status.success() {
        output = tree(&[]);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree failed: {message}");
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(
        tree.lines().any(|line| line.starts_with("redis ")),
        "this is not the tree of fairlock:\n{tree}"
    );
    for runtime in [
        "tokio",
        "async-std",
        "smol",
        "futures-executor",
        "clap",
        "ratatui",
        "serde",
        "metrics",
    ] {
        let found = tree
            .lines()
            .find(|line| line.split(' ').next() == Some(runtime));
        assert_eq!(found, None, "an async runtime is in the default build");
    }
}

/// `tests/run.sh` names the targets, since it builds the library's own tests another way.
#[test]
fn whole_suite_has_all_tests() {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .expect("cargo can be run");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {message}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let script = fs::read_to_string(root().join("tests/run.sh")).expect("tests/run.sh");
    let runs: Vec<Vec<&str>> = script
        .lines()
        .filter_map(|line| line.trim().strip_prefix("run --workspace "))
        .map(|arguments| arguments.split(' ').collect())
        .collect();
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().expect("targets"));
    let mut wrong = Vec::new();
    for target in targets {
        let (kind, name) = (&target["kind"][0], &target["name"]);
        let (kind, name) = (kind.as_str().unwrap(), name.as_str().unwrap());
        let mut needed = Vec::new();
        if target["test"] == true {
            needed.push(match kind {
                "lib" => vec!["--lib".to_owned()],
                "bin" => vec!["--bins".to_owned()],
                _ => vec![format!("--{kind}"), name.to_owned()],
            });
        }
        if target["doctest"] == true {
            needed.push(vec!["--doc".to_owned()]);
        }
        for arguments in needed {
            let has_them = |run: &Vec<&str>| {
                run.windows(arguments.len())
                    .any(|some| some == arguments.as_slice())
            };
            if !runs.iter().any(has_them) {
                wrong.push(arguments.join(" "));
            }
        }
    }
    none(&wrong, "tests/run.sh does not run all tests");
}

#[test]
fn commands_in_readme_exist() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let mut wrong = Vec::new();
    let mut commands = 0;
    let mut fence = None;
    for (number, line) in readme.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() {
                None
            } else {
                Some(info.trim())
            };
            continue;
        }
        let line = line.trim();
        if fence != Some("sh") || line.is_empty() || line.starts_with('#') {
            continue;
        }
        commands += 1;
        for missing in missing_in(line) {
            wrong.push(format!("README.md:{}: {missing}", number + 1));
        }
    }
    assert!(commands > 0, "README.md has no ```sh block with a command");
    none(&wrong, "the README has commands that do not exist");
}

#[test]
fn pages_name_the_promised_rust_version() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let promised = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let promise = format!("Rust {}", promised.expect("a rust-version"));
    for page in [
        "README.md",
        "docs/CONFIGURATION.md",
        "docs/COMMAND_LINE.md",
        "cli/README.md",
        "CHANGELOG.md",
    ] {
        let text = fs::read_to_string(root().join(page)).expect(page);
        assert!(text.contains(&promise), "{page} does not say {promise:?}");
    }
}

#[test]
fn nothing_is_skipped_or_left_undone() {
    // Each is split in two, so that this test does not find its own source.
    let needles = [
        concat!("#[ign", "ore"),
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
    ];
    let mut wrong = Vec::new();
    for dir in ["src", "tests", "examples", "benches", "cli"] {
        for (path, text) in read(dir, "rs") {
            for needle in needles {
                for (at, _) in text.match_indices(needle) {
                    wrong.push(format!("{}: {needle}", place(&path, &text, at)));
                }
            }
        }
    }
    none(&wrong, "a test is skipped or code is missing");
}

/// A test belongs to the suite of both stores, unless its file's head says why it cannot be there.
#[test]
fn behaviours_are_tested_on_both_stores_or_say_why_not() {
    let reasons = [
        "On Redis alone",
        "On this store alone",
        "On both stores",
        "On no store",
    ];
    let files = read("tests/it", "rs");
    let head = |text: &str| {
        let lines = text.lines().take_while(|line| line.starts_with("//!"));
        lines
            .map(|line| line.trim_start_matches("//!").trim())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let says = |text: &str| reasons.iter().any(|reason| head(text).contains(reason));
    let mut wrong = Vec::new();
    for (path, text) in &files {
        let has_tests = code_of(text).contains("#[test]");
        if path.starts_with("tests/it/behaviour") {
            if has_tests || code_of(text).contains("Server::start") {
                wrong.push(format!(
                    "{}: has its own test or server instead of a claim about a backend",
                    path.display()
                ));
            }
        } else if has_tests && !path.ends_with("main.rs") && !path.ends_with("backend.rs") {
            let of_folder = [
                path.with_file_name("mod.rs"),
                path.with_file_name("").with_extension("rs"),
            ];
            let mut folder = files.iter().filter(|(path, _)| of_folder.contains(path));
            if !says(text) && !folder.any(|(_, text)| says(text)) {
                wrong.push(format!(
                    "{}: its head says none of {reasons:?}",
                    path.display()
                ));
            }
        }
    }
    none(
        &wrong,
        "tests are outside the suite of both stores without a reason",
    );
}

#[test]
fn every_rule_is_named_in_the_source() {
    let mut sources = read("src", "rs");
    sources.extend(read("src", "lua"));
    // The legend names every rule, whether any code keeps it or not.
    sources.retain(|(path, _)| path != Path::new(LEGEND));
    let absent: Vec<String> = (1..=22)
        .map(|rule| format!("R{rule}"))
        .filter(|rule| sources.iter().all(|(_, text)| words(text, rule).is_empty()))
        .collect();
    none(&absent, "nothing in src names these rules of the protocol");
}

/// The legend of the rules and the promises.
const LEGEND: &str = "src/engine/mod.rs";

/// The last cell of a row names them: in `src/engine`, unless the path begins with `src`.
#[test]
fn files_that_the_legend_names_exist() {
    let text = fs::read_to_string(root().join(LEGEND)).expect("the legend");
    let (_, legend) = text.split_once("# Legend").expect("a legend");
    let rows = legend
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix("//!"));
    let cells = rows.filter_map(|row| row.trim().trim_end_matches('|').rsplit_once('|'));
    let paths: Vec<&str> = cells
        .flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2))
        .filter(|code| !code.contains("::"))
        .collect();
    assert!(paths.len() > 20, "too few paths were read: {paths:?}");
    let exists = |path: &&str| {
        let path = if path.starts_with("src/") {
            root().join(path)
        } else {
            root().join("src/engine").join(path)
        };
        path.exists() || path.with_extension("rs").exists()
    };
    let absent = paths.into_iter().filter(|path| !exists(path));
    let absent: Vec<String> = absent.map(str::to_owned).collect();
    none(&absent, "the legend names files that are not there");
}

/// The files that a shell line in the README uses but the repository does not have.
fn missing_in(line: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let words: Vec<&str> = line.split_whitespace().collect();
    for pair in words.windows(2).filter(|_| words.contains(&"cargo")) {
        let (dir, name) = match *pair {
            ["--example", name] => ("examples", name),
            ["--bench", name] => ("benches", name),
            _ => continue,
        };
        let dir = root().join(dir);
        if !dir.join(format!("{name}.rs")).is_file() && !dir.join(name).join("main.rs").is_file() {
            missing.push(format!("there is no {name} in {}", dir.display()));
        }
    }
    // The command follows the assignments to its environment.
    let command = words.iter().find(|word| !word.contains('='));
    if let Some(script) = command.filter(|word| word.contains('/')) {
        let runs = |m: fs::Metadata| m.is_file() && m.permissions().mode() & 0o111 != 0;
        if !fs::metadata(root().join(script)).is_ok_and(runs) {
            missing.push(format!("{script} is not an executable file"));
        }
    }
    missing
}

/// The top-level module that a file of `src` belongs to.
fn module_of(path: &Path) -> String {
    let first = path.components().nth(1).expect("a file in src");
    let first = Path::new(first.as_os_str()).file_stem().unwrap();
    first.to_str().unwrap().to_owned()
}

fn is_module(name: &str) -> bool {
    let src = root().join("src");
    src.join(format!("{name}.rs")).is_file() || src.join(name).is_dir()
}

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or(LAYERS.len())
}

/// The files with this extension below a directory of the repository, with their contents. The
/// paths start at the root.
fn read(dir: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(root().join(&dir)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries.map(|e| e.unwrap()) {
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                // A separate package below benches has its own build directory.
                if entry.file_name() != "target" {
                    dirs.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                let text = fs::read_to_string(root().join(&path)).unwrap();
                files.push((path, text));
            }
        }
    }
    files.sort();
    files
}

fn place(path: &Path, text: &str, at: usize) -> String {
    format!(
        "{}:{}",
        path.display(),
        text[..at].matches('\n').count() + 1
    )
}

#[track_caller]
fn none(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

fn root() -> &'static Path {
    Path::new(ROOT)
}
