//! The examples of the help and of the documents are valid command lines.

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
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let indented = text.lines().filter(|line| line.starts_with("  "));
    indented.filter_map(example).collect()
}

/// The examples in the code blocks of a document: every line of a `sh` block, and elsewhere those
/// behind a prompt. The first line of `top` on the screen begins with its name, too.
fn examples_in(text: &str) -> Vec<Vec<String>> {
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(|block| {
        let is_shell = block.starts_with("sh\n");
        let lines = block.lines().skip(1);
        lines.filter(move |line| is_shell || line.starts_with("$ "))
    });
    lines.filter_map(example).collect()
}

/// The words of a line that runs fairlock: `fairlock …`, `$ fairlock …` or
/// `NAME=value fairlock …`, up to a pipe or a redirection.
fn example(line: &str) -> Option<Vec<String>> {
    let words = shlex::split(line.trim().trim_start_matches("$ "))?.into_iter();
    let is_assignment = |word: &String| word.starts_with(char::is_uppercase) && word.contains('=');
    let words = words.skip_while(is_assignment);
    let words = words.take_while(|word| !word.starts_with(['|', '>', '<', ';', '&', '\\']));
    let words: Vec<String> = words.collect();
    (words.len() > 1 && words[0] == "fairlock").then_some(words)
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
