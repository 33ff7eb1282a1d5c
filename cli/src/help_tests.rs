//! The help is complete, and its examples and those of the documents are valid command lines.

use std::fs;

use clap::{Command, CommandFactory as _, Parser as _};

use crate::args::Cli;

/// The documents with examples, from this package's directory.
const DOCUMENTS: [&str; 3] = ["../README.md", "../docs/COMMAND_LINE.md", "README.md"];

/// The command itself and all below it.
fn commands() -> Vec<Command> {
    let mut root = Cli::command();
    root.build();
    let below: Vec<Command> = root.get_subcommands().cloned().collect();
    [vec![root], below].concat()
}

/// The examples at the end of a command's help.
fn examples_of(command: &Command) -> Vec<Vec<String>> {
    let text = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let indented = text.lines().filter(|line| line.starts_with("  "));
    indented.filter_map(example).collect()
}

/// The examples in the code blocks of a document: every line of a `sh` block, and elsewhere those
/// behind a prompt. The first line of `top` on the screen begins with its name, too.
fn examples_in(text: &str) -> Vec<Vec<String>> {
    let mut block: Option<&str> = None;
    let mut found = Vec::new();
    for line in text.lines() {
        match (block, line.strip_prefix("```")) {
            (None, Some(language)) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (Some(language), None) if language == "sh" || line.starts_with("$ ") => {
                found.extend(example(line));
            }
            _ => {}
        }
    }
    found
}

/// The words of a line that runs fairlock: `fairlock …`, `$ fairlock …` or
/// `NAME=value fairlock …`.
fn example(line: &str) -> Option<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let words = words(line);
    let begin = words.iter().position(|word| !is_assignment(word))?;
    (words[begin] == "fairlock" && words.len() > begin + 1).then(|| words[begin..].to_vec())
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

/// The words of the first command of a shell's line, without quotes, comments and redirections.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '<' | ';' | '&' | '\\') => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_option_and_argument_has_help() {
    for command in commands() {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string);
            assert!(
                help.is_some_and(|help| help.len() > 5),
                "{}: {argument}",
                command.get_name()
            );
        }
    }
}

#[test]
fn every_command_has_an_example_of_its_own() {
    for command in commands() {
        let name = command.get_name();
        let is_of_command =
            |example: &Vec<String>| name == "fairlock" || example.iter().any(|word| word == name);
        let examples = examples_of(&command);
        assert!(examples.iter().any(is_of_command), "{name}: {examples:?}");
    }
}

#[test]
fn examples_are_valid_command_lines() {
    let mut examples = Vec::new();
    for command in commands() {
        examples.extend(examples_of(&command));
    }
    for document in DOCUMENTS {
        let path = format!("{}/{document}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let found = examples_in(&text);
        assert!(!found.is_empty(), "{document} has no example");
        examples.extend(found);
    }
    assert!(examples.len() > 20, "{} are too few", examples.len());
    for words in examples {
        match Cli::try_parse_from(&words) {
            Ok(_) => {}
            // `--help` and `--version` end the parser, too.
            Err(error) if !error.use_stderr() => {}
            Err(error) => panic!("{}: {error}", words.join(" ")),
        }
    }
}

#[test]
fn exit_codes_of_the_help_are_those_of_the_document() {
    let help = Cli::command().get_after_help().map(ToString::to_string);
    let help = help.expect("it has the exit codes");
    let in_help = help.lines().filter_map(|line| {
        let (code, meaning) = line.trim_start().split_once("  ")?;
        Some((code.parse::<u8>().ok()?, meaning.to_owned()))
    });
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COMMAND_LINE.md");
    let document = fs::read_to_string(path).expect("the document");
    let section = document
        .split("\n## ")
        .find(|s| s.starts_with("Exit codes"));
    let rows = section.expect("the section").lines().filter_map(|line| {
        let (code, meaning) = line.strip_prefix("| ")?.split_once(" | ")?;
        let meaning = meaning.strip_suffix(" |")?.replace('`', "");
        Some((code.parse::<u8>().ok()?, meaning))
    });
    assert_eq!(in_help.collect::<Vec<_>>(), rows.collect::<Vec<_>>());
}

#[test]
fn example_ends_where_the_command_ends() {
    let line = "  $ FAIRLOCK_URL=redis://h fairlock run 'a b' -- sh -c \"x | y\" > log # why";
    let expected = ["fairlock", "run", "a b", "--", "sh", "-c", "x | y"];
    assert_eq!(example(line).unwrap(), expected);
    assert_eq!(example("fairlock: it failed"), None);
    assert_eq!(example("the fairlock command"), None);
}
