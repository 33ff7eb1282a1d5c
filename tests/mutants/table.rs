//! The table of mutants, as its head describes it, and one mutant.

use std::{collections::BTreeSet, fs, path::Path};

use fairlock_tests::ROOT;

const TABLE: &str = include_str!("table.txt");

/// A line that is broken.
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) file: String,
    /// What stands there: in front of the broken text, the text, and behind it.
    line: [String; 3],
    becomes: String,
    /// Targets, and names of tests.
    pub(crate) red: Vec<(String, String)>,
}

pub(crate) fn read() -> Vec<Mutant> {
    let text: String = TABLE
        .split_inclusive('\n')
        .filter(|line| !line.starts_with('#'))
        .collect();
    let blocks = text.split("\n\n").filter(|block| !block.trim().is_empty());
    let mutants: Vec<Mutant> = blocks.map(|block| Mutant::read(block.trim())).collect();
    let mut names = BTreeSet::new();
    for mutant in &mutants {
        assert!(
            names.insert(&mutant.name),
            "table.txt has {:?} twice",
            mutant.name
        );
    }
    mutants
}

impl Mutant {
    fn read(block: &str) -> Mutant {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for line in block.lines() {
            match (
                line.strip_prefix('|'),
                fields.last_mut(),
                line.split_once(": "),
            ) {
                (Some(more), Some((_, value)), _) => value.push_str(&format!("\n{more}")),
                (None, _, Some((key, value))) => fields.push((key, value.to_owned())),
                _ => panic!("table.txt: {line:?} is no field, in\n{block}"),
            }
        }
        let all = |wanted: &str| -> Vec<String> {
            let found = fields.iter().filter(|(key, _)| *key == wanted);
            found.map(|(_, value)| value.clone()).collect()
        };
        let one = |wanted: &str| match &all(wanted)[..] {
            [value] => value.clone(),
            _ => panic!("table.txt: {wanted:?} is not there once, in\n{block}"),
        };
        let red = all("red").into_iter().map(|red| {
            let (target, test) = red
                .split_once(' ')
                .unwrap_or_else(|| panic!("table.txt: {red:?}"));
            (target.to_owned(), test.to_owned())
        });
        let line = one("line");
        let marked = line.split_once('«').and_then(|(before, rest)| {
            let (broken, behind) = rest.split_once('»')?;
            Some([before, broken, behind])
        });
        let mutant = Mutant {
            name: one("name"),
            file: one("in"),
            line: marked.unwrap_or(["", &line, ""]).map(str::to_owned),
            becomes: one("becomes"),
            red: red.collect(),
        };
        assert!(
            !mutant.red.is_empty(),
            "table.txt: no test finds {:?}",
            mutant.name
        );
        mutant
    }

    pub(crate) fn is_of_script(&self) -> bool {
        self.file.ends_with(".lua")
    }

    /// An error if the line is not in this text once, or a script has it that is not named.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        let (name, file, line) = (&self.name, &self.file, self.line.concat());
        let found = match text.matches(&line).count() {
            1 if self.is_of_script() => all_scripts().matches(&line).count(),
            found => found,
        };
        match found {
            1 => Ok(()),
            _ => Err(format!("{name}: {file} has this {found} times: {line}")),
        }
    }

    /// The text with a choice between the line and its mutant. A statement stays one; anything else is an
    /// expression, and stays one.
    pub(crate) fn choice_in(&self, text: &str) -> String {
        let [before, line, behind] = &self.line;
        let (name, becomes) = (&self.name, &self.becomes);
        let choice = format!("if crate::mutants::on({name:?}) {{ {becomes} }} else {{ {line} }}");
        let choice = match line.ends_with([';', '}']) {
            true => choice,
            false => format!("({choice})"),
        };
        text.replace(&self.line.concat(), &format!("{before}{choice}{behind}"))
    }

    /// The name, the line of a script, and what replaces it there.
    pub(crate) fn replacement(&self) -> (&str, String, String) {
        let [before, _, behind] = &self.line;
        let becomes = format!("{before}{}{behind}", self.becomes);
        (&self.name, self.line.concat(), becomes)
    }
}

/// A part is in several scripts, and is broken in each. So no other part may have its line.
fn all_scripts() -> String {
    let files = fs::read_dir(Path::new(ROOT).join("src/script")).expect("the scripts");
    let paths = files.map(|file| file.expect("a file").path());
    let scripts = paths.filter(|path| path.extension().is_some_and(|end| end == "lua"));
    let texts = scripts.map(|path| fs::read_to_string(path).expect("a script"));
    texts.collect()
}

pub(crate) fn source(file: &str) -> String {
    let text = fs::read_to_string(Path::new(ROOT).join(file));
    text.unwrap_or_else(|error| panic!("table.txt names {file}: {error}"))
}
