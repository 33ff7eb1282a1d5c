//! No two files import each other, directly or through others. The rooms of the engine and of the
//! store name only those below them, and those of the engine call only those below them. A folder's `mod.rs` is its table of contents, so a file
//! and the `mod.rs` above it may name each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::code::code_of;
use super::names::type_of;
use super::{is_unit_test, none, read};

/// The position of a folder's files in the module tree of a crate.
type Roots = &'static [(&'static str, &'static [&'static str])];

const LIBRARY: Roots = &[
    ("src", &[]),
    ("tests/sim", &["sim"]),
    ("tests/model", &["sim", "model"]),
];

const COMMAND_LINE: Roots = &[("cli/src", &[])];

/// The rooms of the engine, top to bottom. A room may name those below it.
const ENGINE: &[&[&str]] = &[
    &["lifecycle"],
    &["background"],
    &["acquiring"],
    &["trying"],
    &["subscription"],
    &["releasing"],
    &["names"],
    &["base"],
    &["waiting"],
    &["grants"],
    &["reports"],
    &["holding"],
    &["upkeep"],
    &["callbacks"],
    &["hearing"],
    &["client"],
    &["waiter"],
    &["lease"],
    &["life"],
    &["request"],
    &["log_text"],
];

/// The owners of the renewal thread, top to bottom. Those of one row know nothing of each other.
const BACKGROUND: &[&[&str]] = &[
    &["thread"],
    &["waiter_upkeep", "release_upkeep", "lease_renewal"],
    &["link", "long_wait", "timers"],
    &["schedule"],
];

/// The structs that own the state of the engine. Nobody else gets at their fields.
const OWNERS: &[&str] = &[
    "Acquiring",
    "Askers",
    "Trying",
    "Callbacks",
    "Client",
    "Grants",
    "Hearing",
    "Holding",
    "LeaseRenewal",
    "Life",
    "Names",
    "ReleaseUpkeep",
    "Releasing",
    "RenewalLink",
    "RenewalThread",
    "Schedule",
    "Subscription",
    "Tasks",
    "Timers",
    "Upkeep",
    "WaiterRegistry",
    "WaiterUpkeep",
    "Waiting",
];

/// The words for what a layer above the engine does with a lease that its callers share.
const LOCAL_WORDS: &[&str] = &[
    "line", "lines", "member", "members", "tenure", "tenures", "turn", "turns",
];

/// The rooms of the store. A topology is in the first row, and may not name another one.
const STORE: &[&[&str]] = &[
    &["unusable", "server_connection"],
    &["single", "sentinel", "cluster", "quorum", "memory"],
    &["node"],
    &["again"],
    &["fault", "url"],
    &["topology"],
    &["tls"],
    &["tls_words"],
    &["provider"],
    &["foreign"],
    &["refusal"],
    &["troubles"],
    &["clock"],
    &["attendants"],
];

type ModulePath = Vec<String>;

/// The files of a crate, for the library also those of the simulator, by their place in the module
/// tree.
struct Modules {
    roots: Roots,
    files: BTreeMap<ModulePath, PathBuf>,
    /// The imports of each module, by the name that each gets there.
    imports: BTreeMap<ModulePath, Vec<(String, ModulePath)>>,
    code: BTreeMap<ModulePath, String>,
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for (roots, least) in [(LIBRARY, 60), (COMMAND_LINE, 15)] {
        let arrows = Modules::read(roots).arrows();
        let count = arrows.values().filter(|named| !named.is_empty()).count();
        assert!(count > least, "{count} files of {roots:?} name another");
        let circles: Vec<String> = circles(&arrows)
            .iter()
            .map(|circle| {
                let names: Vec<_> = circle
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect();
                names.join(" - ")
            })
            .collect();
        none(&circles, "these files import each other in a circle");
    }
}

/// Each file of the command line with the files that it names.
pub(super) fn arrows_of_the_command_line() -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    Modules::read(COMMAND_LINE).arrows()
}

#[test]
fn arrows_run_down_inside_the_engine_and_the_store() {
    let arrows = Modules::read(LIBRARY).arrows();
    let mut wrong = Vec::new();
    for (folder, rows) in [
        ("src/engine", ENGINE),
        ("src/engine/background", BACKGROUND),
        ("src/store", STORE),
    ] {
        for (from, named) in &arrows {
            for to in named {
                if let (Some(above), Some(below)) = (room(folder, from), room(folder, to))
                    && above != below
                    && !may_name(rows, &above, &below)
                {
                    wrong.push(format!("{} names {}", from.display(), to.display()));
                }
            }
        }
    }
    none(&wrong, "arrows run up inside a folder");
}

/// Whether a room may name another: it is above it. Topologies are a row of the store and stay apart.
fn may_name(rows: &[&[&str]], above: &str, below: &str) -> bool {
    let row = |name: &str| rows.iter().position(|row| row.contains(&name));
    match (row(above), row(below)) {
        (Some(above), Some(below)) => above < below,
        // A room that no row has is one that this test does not know yet.
        _ => false,
    }
}

/// The room of a folder that a file belongs to. The folder's `mod.rs` and models for tests are
/// none.
fn room(folder: &str, file: &Path) -> Option<String> {
    let inside = file.strip_prefix(folder).ok()?;
    let first = Path::new(inside.components().next()?.as_os_str()).file_stem()?;
    let name = first.to_str()?;
    (!matches!(name, "mod" | "loom_models")).then(|| name.to_owned())
}

/// A call of a method is no import. But a caller needs a value of the method's type, so its file, or
/// one below it, names that type. If each type has its methods in the room that defines it, calls run
/// down as imports do. A trait is the way up: the lower room declares it.
#[test]
fn methods_of_the_engines_types_stand_in_the_rooms_that_define_them() {
    let modules = Modules::read(LIBRARY);
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut methods = Vec::new();
    for (file, code) in modules.code_in("src/engine") {
        let room = room("src/engine", file).unwrap_or_else(|| "mod".to_owned());
        for line in code.lines() {
            if let Some(defined) = type_of(line) {
                homes.entry(defined).or_default().insert(room.clone());
            } else if let Some(of) = methods_of(line) {
                methods.push((of, room.clone(), file.display().to_string()));
            }
        }
    }
    assert!(methods.len() > 50, "{} blocks of methods", methods.len());
    let is_elsewhere = |(of, room, _): &&(String, String, String)| {
        !homes.get(of).is_some_and(|homes| homes.contains(room))
    };
    let wrong: Vec<String> = methods
        .iter()
        .filter(is_elsewhere)
        .map(|(of, _, file)| format!("{file} has methods of {of}"))
        .collect();
    none(&wrong, "methods stand in another room than their type");
}

#[test]
fn rooms_of_the_engine_know_neither_the_engine_nor_the_fields_of_owners() {
    let modules = Modules::read(LIBRARY);
    let engine: ModulePath = ["engine", "Engine"].map(str::to_owned).into();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (module, file) in &modules.files {
        let Some(room) = room("src/engine", file) else {
            continue;
        };
        let code = &modules.code[module];
        let imports = modules.imports[module].iter().map(|(_, path)| path.clone());
        if room != "lifecycle"
            && imports
                .chain(inline_paths(module, code))
                .any(|path| path == engine)
        {
            wrong.push(format!("{} names Engine", file.display()));
        }
        for (owner, fields) in fields_of_structs(code) {
            if OWNERS.contains(&owner.as_str()) {
                if !super::code::words(&fields, "pub").is_empty() {
                    wrong.push(format!("{} shows fields of {owner}", file.display()));
                }
                seen.insert(owner);
            }
        }
    }
    assert_eq!(seen.len(), OWNERS.len(), "{seen:?}");
    none(&wrong, "an owner is open");
}

#[test]
fn engine_only_wires_its_owners() {
    let modules = Modules::read(LIBRARY);
    let mut blocks = 0;
    let mut methods = 0;
    for (_, code) in modules.code_in("src/engine") {
        for block in code.split("\nimpl Engine {").skip(1) {
            let block = block.split("\n}\n").next().unwrap_or("");
            blocks += 1;
            methods += super::code::words(block, "fn").len();
        }
    }
    assert!((1..=3).contains(&blocks), "{blocks} blocks of methods");
    assert!((10..=25).contains(&methods), "{methods} methods");
}

/// The layer above the engine shares a lease among callers. The engine must not know how: the next
/// layer of this kind would find the words of the first in its way.
#[test]
fn engine_knows_no_word_of_local_handovers() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (file, code) in Modules::read(LIBRARY).code_in("src/engine") {
        for word in words_of_names(code) {
            seen += 1;
            if LOCAL_WORDS.contains(&word.as_str()) {
                wrong.push(format!("{}: {word}", file.display()));
            }
        }
    }
    assert!(seen > 10_000, "{seen} words");
    none(&wrong, "words of src/local in src/engine");
}

/// The words that the names in this code are made of, in lower case.
fn words_of_names(code: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = ' ';
    for c in code.chars() {
        if !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && !last.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if c.is_ascii_alphabetic() {
            let word = words.last_mut().expect("there is always one");
            word.push(c.to_ascii_lowercase());
        }
        last = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn names_are_split_into_words() {
    let words = words_of_names("fn end_turn(LineState) -> LOCAL_TURNS {}");
    let expected = ["fn", "end", "turn", "line", "state", "local", "turns"];
    assert_eq!(words, expected);
}

/// The type whose own methods a line of code begins. `None` for the methods of a trait.
fn methods_of(line: &str) -> Option<String> {
    let header = line.strip_prefix("impl")?;
    if header.contains(" for ") {
        return None;
    }
    let header = match header.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => header,
    };
    Some(leading_word(header.trim_start()))
}

fn leading_word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The structs that a file defines, each with the text of its fields.
fn fields_of_structs(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for at in super::code::words(code, "struct") {
        let rest = code[at + "struct".len()..].trim_start();
        let name = leading_word(rest);
        let end = if rest[name.len()..].trim_start().starts_with('(') {
            rest.find(';')
        } else {
            rest.find("\n}")
        };
        found.push((name, rest[..end.unwrap_or(rest.len())].to_owned()));
    }
    found
}

#[test]
fn circle_is_found() {
    let file = |name: &str| PathBuf::from(name);
    let arrow = |from: &str, to: &[&str]| (file(from), to.iter().map(|to| file(to)).collect());
    let arrows: BTreeMap<_, BTreeSet<_>> = [
        arrow("a", &["b"]),
        arrow("b", &["c", "d"]),
        arrow("c", &["a"]),
        arrow("d", &[]),
    ]
    .into();
    let found = [file("a"), file("b"), file("c")].into();
    assert_eq!(circles(&arrows), [found]);
}

#[test]
fn imports_are_followed_to_the_file_that_defines_them() {
    let mut modules = Modules::new(LIBRARY);
    modules.add("src/lib.rs", "mod a;\nmod b;\npub use a::one::Thing;\n");
    modules.add(
        "src/a/mod.rs",
        "mod one;\nmod two;\npub(crate) use one::Thing;\n",
    );
    modules.add("src/a/one.rs", "use crate::b;\nfn f() { b::run() }\n");
    modules.add("src/a/two.rs", "use super::Thing;\n");
    modules.add("src/b.rs", "use crate::a::{Thing as Other, two::*};\n");
    let arrows = modules.arrows();
    let named = |file: &str| -> Vec<String> {
        let named = arrows.get(Path::new(file)).into_iter().flatten();
        named.map(|to| to.display().to_string()).collect()
    };
    assert_eq!(named("src/a/one.rs"), ["src/b.rs"]);
    assert_eq!(named("src/a/two.rs"), ["src/a/one.rs"]);
    assert_eq!(named("src/b.rs"), ["src/a/one.rs", "src/a/two.rs"]);
}

impl Modules {
    fn new(roots: Roots) -> Modules {
        Modules {
            roots,
            files: BTreeMap::new(),
            imports: BTreeMap::new(),
            code: BTreeMap::new(),
        }
    }

    fn read(roots: Roots) -> Modules {
        let mut modules = Modules::new(roots);
        for (dir, _) in roots {
            for (path, text) in read(dir, "rs") {
                if is_unit_test(&path) {
                    continue;
                }
                modules.add(
                    path.to_str().expect("paths of this repository are UTF-8"),
                    &text,
                );
            }
        }
        modules
    }

    fn add(&mut self, path: &str, text: &str) {
        let code = code_of(text);
        // A unit test may name whatever it needs.
        let code = code
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or("")
            .to_owned();
        let module = module_path(self.roots, Path::new(path));
        let imports = imports(&module, &code);
        self.files.insert(module.clone(), path.into());
        self.imports.insert(module.clone(), imports);
        self.code.insert(module, code);
    }

    /// The files of a folder, each with its code.
    fn code_in(&self, folder: &str) -> impl Iterator<Item = (&Path, &str)> {
        let files = self.files.iter();
        files.filter_map(move |(module, file)| {
            let code = self.code[module].as_str();
            file.starts_with(folder).then_some((file.as_path(), code))
        })
    }

    /// Each file with the files that it names.
    fn arrows(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut arrows = BTreeMap::new();
        for (module, file) in &self.files {
            let mut named = BTreeSet::new();
            let imports = self.imports[module].iter().map(|(_, path)| path.clone());
            for path in imports.chain(inline_paths(module, &self.code[module])) {
                if let Some(to) = self.defining(&path)
                    && !to.starts_with(module)
                    && !module.starts_with(to)
                {
                    named.insert(self.files[to].clone());
                }
            }
            arrows.insert(file.clone(), named);
        }
        arrows
    }

    /// The module whose file defines what this path leads to.
    fn defining(&self, path: &[String]) -> Option<&ModulePath> {
        let mut path = path.to_vec();
        // A re-export leads on to another path; no chain of them is longer than this.
        for _ in 0..8 {
            let depth = (0..=path.len())
                .rev()
                .find(|n| self.files.contains_key(&path[..*n]))?;
            let (module, _) = self.files.get_key_value(&path[..depth])?;
            let Some(name) = path.get(depth) else {
                return Some(module);
            };
            let led_on = self.imports[module]
                .iter()
                .find(|(import, _)| import == name);
            match led_on {
                Some((_, to)) if *to != path[..=depth] => {
                    path = to.iter().chain(&path[depth + 1..]).cloned().collect();
                }
                _ => return Some(module),
            }
        }
        None
    }
}

fn module_path(roots: Roots, file: &Path) -> ModulePath {
    let (root, above) = roots
        .iter()
        .find(|(root, _)| file.starts_with(root))
        .expect("a file of the crate");
    let inside = file
        .strip_prefix(root)
        .expect("it starts with it")
        .with_extension("");
    let mut path: ModulePath = above.iter().map(|name| (*name).to_owned()).collect();
    path.extend(
        inside
            .iter()
            .map(|name| name.to_str().expect("UTF-8").to_owned()),
    );
    if matches!(
        path.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        path.pop();
    }
    path
}

/// An import of a module: the name in the module, and the path from the root of the crate.
fn imports(module: &[String], code: &str) -> Vec<(String, ModulePath)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        // Attributes and earlier items come before the word.
        let Some(at) = super::code::words(statement, "use").pop() else {
            continue;
        };
        leaves(&[], statement[at + 3..].trim(), &mut found);
    }
    found
        .into_iter()
        .filter_map(|(name, path)| Some((name, absolute(module, path)?)))
        .collect()
}

/// The paths of a `use` tree, each with the name that it gets.
fn leaves(before: &[String], tree: &str, found: &mut Vec<(String, ModulePath)>) {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{') {
        let group = group.strip_suffix('}').unwrap_or(group);
        let mut depth = 0_u32;
        let mut start = 0;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    leaves(before, &group[start..at], found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        leaves(before, &group[start..], found);
    } else if let Some((first, rest)) = tree.split_once("::") {
        let path = [before, &[first.trim().to_owned()]].concat();
        leaves(&path, rest, found);
    } else if !tree.is_empty() {
        let (item, name) = tree.split_once(" as ").unwrap_or((tree, tree));
        let mut path = before.to_vec();
        if !matches!(item.trim(), "self" | "*") {
            path.push(item.trim().to_owned());
        }
        let name = if name.trim() == "self" {
            before.last().cloned()
        } else {
            None
        };
        found.push((name.unwrap_or_else(|| tree_name(tree)), path));
    }
}

fn tree_name(tree: &str) -> String {
    tree.split(" as ").last().unwrap_or(tree).trim().to_owned()
}

/// Paths that begin with `crate` or `super` outside of `use`.
fn inline_paths(module: &[String], code: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for first in ["crate::", "super::"] {
        for at in super::code::words(code, first) {
            if code[..at].ends_with("::") {
                continue;
            }
            let text: String = code[at..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
                .collect();
            // A group of `use` goes on with a brace, and is read there.
            if text.ends_with("::") {
                continue;
            }
            let path = text
                .split("::")
                .filter(|name| !name.is_empty())
                .map(str::to_owned);
            found.extend(absolute(module, path.collect()));
        }
    }
    found
}

/// The path from the root of the crate. A path into another crate leads to no file and does no
/// harm.
fn absolute(module: &[String], path: ModulePath) -> Option<ModulePath> {
    let mut base = module.to_vec();
    let mut rest = &path[..];
    match rest.first().map(String::as_str) {
        Some("crate") => (base, rest) = (Vec::new(), &rest[1..]),
        Some("self") => rest = &rest[1..],
        _ => {}
    }
    while rest.first().map(String::as_str) == Some("super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Groups of files of which each leads to each other one.
pub(super) fn circles(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<BTreeSet<PathBuf>> {
    let reached = |from: &PathBuf| {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&PathBuf> = arrows.get(from).into_iter().flatten().collect();
        while let Some(file) = next.pop() {
            if reached.insert(file.clone()) {
                next.extend(arrows.get(file).into_iter().flatten());
            }
        }
        reached
    };
    let reach: BTreeMap<&PathBuf, _> = arrows.keys().map(|file| (file, reached(file))).collect();
    let mut circles: Vec<BTreeSet<PathBuf>> = Vec::new();
    for (file, far) in &reach {
        let circle: BTreeSet<PathBuf> = far
            .iter()
            .filter(|other| reach.get(other).is_some_and(|far| far.contains(*file)))
            .cloned()
            .collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}
