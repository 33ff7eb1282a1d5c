//! The files that `completions` and `man` generate.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{end, printed, without_server};

const COMMANDS: &str = "run ls show why-waiting top release doctor bench completions man";

/// Whether this program is on this machine.
fn is_here(program: &str) -> bool {
    let answer = Command::new(program).arg("--version").output();
    answer.is_ok_and(|output| output.status.success())
}

/// The program accepts the file, and complains of nothing.
#[track_caller]
fn accepted_by(program: &str, args: &[&str]) -> String {
    printed(Command::new(program).args(args).env("LC_ALL", "C.UTF-8"))
}

#[test]
fn completions_name_every_command_in_every_shell() {
    let dir = TempDir::new().expect("a directory");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(without_server(&["completions", shell]));
        for command in COMMANDS.split(' ') {
            assert!(script.contains(command), "{shell} lacks {command}");
        }
        assert!(script.contains("url"), "{shell} lacks --url");
        if matches!(shell, "bash" | "zsh" | "fish") && is_here(shell) {
            let path = dir.path().join(shell);
            fs::write(&path, script).expect("our own directory is writable");
            accepted_by(shell, &["-n", path.to_str().expect("a plain name")]);
        }
    }
    let completes = "source ./bash; COMP_WORDS=(fairlock why); COMP_CWORD=1; _fairlock fairlock \
                     why fairlock; echo $COMPREPLY";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", completes]);
    assert_eq!(end(bash.current_dir(&dir)).stdout, "why-waiting\n");
}

#[test]
fn every_command_has_a_man_page() {
    let dir = TempDir::new().expect("a directory");
    let directory = dir.path().join("share/man/man1");
    printed(without_server(&["man", directory.to_str().unwrap()]));
    let own = COMMANDS.split(' ').map(|name| format!("fairlock-{name}.1"));
    let pages: Vec<String> = own.chain(["fairlock.1".to_owned()]).collect();
    let written = fs::read_dir(&directory).expect("it was made");
    assert_eq!(written.count(), pages.len());
    for page in pages {
        let path = directory.join(&page);
        let text = fs::read_to_string(&path).expect("text");
        for part in [".SH NAME", "\\-\\-user", "Needs a password", "Examples:"] {
            assert!(text.contains(part), "{part}, {page}: {text}");
        }
        if is_here("groff") {
            let path = path.to_str().expect("a plain name");
            let shown = accepted_by("groff", &["-man", "-Tutf8", "-ww", "-b", path]);
            assert!(shown.contains("fairlock"), "{page}: {shown}");
        }
    }
    let whole = fs::read_to_string(directory.join("fairlock.1")).expect("text");
    assert_eq!(
        printed(without_server(&["man"])).trim_end(),
        whole.trim_end()
    );
}
