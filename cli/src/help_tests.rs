//! The examples of the help and of the documents are valid command lines.

use std::fs;

use clap::{CommandFactory as _, Parser as _};

use crate::args::Cli;

/// The documents with examples, from this package's directory.
const DOCUMENTS: [&str; 3] = ["../README.md", "../docs/COMMAND_LINE.md", "README.md"];

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
    let mut program = Cli::command();
    program.build();
    let help = program.get_subcommands().chain([&program]);
    let help = help.filter_map(|command| command.get_after_help());
    let help = help.map(|text| format!("```sh\n{text}\n```"));
    let documents = DOCUMENTS.map(|document| {
        let path = format!("{}/{document}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    });
    let mut examples = Vec::new();
    for text in help.chain(documents) {
        let found = examples_in(&text);
        assert!(!found.is_empty(), "no example in {text}");
        examples.extend(found);
    }
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
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/COMMAND_LINE.md");
    let document = fs::read_to_string(path).expect("the document");
    let mut sections = document.split("\n## ");
    let section = sections.find(|section| section.starts_with("Exit codes"));
    let rows = |text: &str| -> Vec<(u8, String)> {
        let lines = text.lines().map(|line| line.replace('`', ""));
        let lines = lines.map(|line| line.trim_matches(['|', ' ']).replace(" | ", "  "));
        lines
            .filter_map(|line| {
                let (code, meaning) = line.split_once("  ")?;
                Some((code.parse().ok()?, meaning.to_owned()))
            })
            .collect()
    };
    assert_eq!(rows(&help), rows(section.expect("the section")));
}
