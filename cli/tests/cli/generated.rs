//! The files that `completions` and `man` generate.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{end, without_server};

pub(crate) const COMMANDS: [&str; 11] = [
    "run",
    "ls",
    "show",
    "watch",
    "why-waiting",
    "top",
    "release",
    "doctor",
    "bench",
    "completions",
    "man",
];

/// Its output, without a server.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let ended = end(&mut without_server(args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "", "{args:?}");
    ended.stdout
}

/// Whether this program is on this machine.
fn is_here(program: &str) -> bool {
    let answer = Command::new(program).arg("--version").output();
    answer.is_ok_and(|output| output.status.success())
}

/// The program accepts the file, and complains of nothing.
#[track_caller]
fn accepted_by(program: &str, args: &[&str]) -> String {
    let ended = end(Command::new(program).args(args).env("LC_ALL", "C.UTF-8"));
    assert_eq!(ended.code, Some(0), "{program} {args:?}: {ended:?}");
    assert_eq!(ended.stderr, "", "{program} {args:?}");
    ended.stdout
}

#[test]
fn completions_name_every_command_in_every_shell() {
    let dir = TempDir::new().expect("a directory");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for command in COMMANDS {
            assert!(script.contains(command), "{shell} lacks {command}");
        }
        assert!(script.contains("sentinel"), "{shell} lacks --sentinel");
        if matches!(shell, "bash" | "zsh" | "fish") && is_here(shell) {
            let path = dir.path().join(shell);
            fs::write(&path, script).expect("our own directory is writable");
            accepted_by(shell, &["-n", path.to_str().expect("a plain name")]);
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("fairlock");
    fs::write(&path, printed(&["completions", "bash"])).expect("our own directory is writable");
    for (typed, expected) in [
        (&["fairlock", "why"][..], "why-waiting"),
        (&["fairlock", "ls", "--password-f"], "--password-file"),
        (&["fairlock", "completions", "zs"], "zsh"),
        // The command of `run` is completed as the shell would complete it.
        (&["fairlock", "run", "x", "--", "compge"], "compgen"),
        (&["fairlock", "run", "x", "--", "ls", "--password-f"], ""),
    ] {
        let last = typed.len() - 1;
        let script = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={last}; _fairlock_or_command fairlock {} {}; \
             echo \"${{COMPREPLY[@]}}\"",
            path.display(),
            typed.join(" "),
            typed[last],
            typed[last - 1],
        );
        let answer = accepted_by("bash", &["--norc", "-c", &script]);
        assert_eq!(answer.trim(), expected, "{typed:?}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let dir = TempDir::new().expect("a directory");
    let directory = dir.path().join("share/man/man1");
    printed(&["man", directory.to_str().expect("a plain name")]);
    let mut pages: Vec<String> = fs::read_dir(&directory)
        .expect("it was made")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("plain")
        })
        .collect();
    let mut expected: Vec<String> = COMMANDS.map(|c| format!("fairlock-{c}.1")).to_vec();
    expected.push("fairlock.1".to_owned());
    pages.sort();
    expected.sort();
    assert_eq!(pages, expected);
    for page in pages {
        let path = directory.join(&page);
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.contains(".SH NAME"), "{page}: {text}");
        assert!(text.contains("\\-\\-sentinel"), "{page}: {text}");
        assert!(text.contains(".SH EXAMPLES\n.nf\n"), "{page}: {text}");
        if is_here("groff") {
            let path = path.to_str().expect("a plain name");
            let shown = accepted_by("groff", &["-man", "-Tutf8", "-ww", "-b", path]);
            assert!(shown.contains("fairlock"), "{page}: {shown}");
        }
    }
}

#[test]
fn man_prints_the_page_of_fairlock() {
    let page = printed(&["man"]);
    for section in [
        "NAME",
        "SYNOPSIS",
        "CONNECTION",
        "EXAMPLES",
        "\"EXIT CODES\"",
    ] {
        assert!(
            page.contains(&format!(".SH {section}\n")),
            "{section}: {page}"
        );
    }
}

#[test]
fn man_names_a_directory_that_cannot_be_made() {
    let ended = end(&mut without_server(&["man", "/dev/null/man1"]));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("/dev/null/man1"), "{ended:?}");
}
