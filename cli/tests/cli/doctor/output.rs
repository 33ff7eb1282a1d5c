//! Tables, JSON and exit codes.

use crate::process::{Ended, code_unread, end, without_server};
use crate::support::Server;
use crate::usage::assert_golden;

/// A reply may take so long that no loaded machine is found too slow.
const PATIENT: [&str; 2] = ["--command-timeout", "20s"];

const EVICTING: [&str; 4] = ["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"];

fn doctor(server: &Server, args: &[&str]) -> Ended {
    let mut command = without_server(&["doctor"]);
    end(command
        .args(PATIENT)
        .args(args)
        .env("FAIRLOCK_URL", server.url()))
}

/// The text with `N` for each word that begins with a digit, and one space for several.
fn masked(text: &str) -> String {
    let is_end = |c: char| !c.is_alphanumeric() && c != '.';
    let words = text.split_inclusive(is_end).map(|word| {
        let rest = word.trim_start_matches(|c: char| !is_end(c));
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        if is_number {
            format!("N{rest}")
        } else {
            word.to_owned()
        }
    });
    let lines = words.collect::<String>();
    let lines = lines
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn diagnosis_of_a_plain_server_is_as_its_golden_files_have_it() {
    let server = Server::tcp();
    for (name, args) in [("doctor_table.txt", &[][..]), ("doctor.jsonl", &["--json"])] {
        let ended = doctor(&server, args);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        let found = ended.stdout.replace(&server.addr().to_string(), "SERVER");
        assert_golden(name, &masked(&found));
    }
}

#[test]
fn worst_finding_makes_the_exit_code_and_quiet_leaves_out_what_is_ok() {
    let (warned, failed) = (Server::tcp(), Server::tcp_with(&EVICTING));
    for (server, args, code, rows) in [
        (&warned, &["--strict"][..], 1, 15),
        (&warned, &["-q"], 0, 4),
        (&failed, &["-q"], 1, 6),
    ] {
        let ended = doctor(server, args);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stdout.lines().count(), rows, "{ended:?}");
    }
}

#[test]
fn wrong_usage_exits_64() {
    let server = Server::tcp();
    for (url, args) in [
        (&*server.url(), &["--ttl", "5"]),
        (&server.url(), &["--ttl", "1ms"]),
        ("http://127.0.0.1/", &["--ttl", "9s"]),
    ] {
        let mut command = without_server(&["doctor"]);
        let ended = end(command.args(args).env("FAIRLOCK_URL", url));
        assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    }
}

#[test]
fn exit_code_of_doctor_needs_no_reader() {
    let refusing = Server::tcp_with(&["--requirepass", "secret"]);
    let evicting = Server::tcp_with(&EVICTING);
    for (server, code) in [(&refusing, 69), (&evicting, 1)] {
        let mut command = without_server(&["doctor"]);
        command.args(PATIENT).env("FAIRLOCK_URL", server.url());
        assert_eq!(code_unread(&mut command), Some(code));
    }
}
