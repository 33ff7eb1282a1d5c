//! Lines, colours and exit codes.

use super::{GOOD, Level, diagnose_with};
use crate::process::{Ended, code_unread, end, fairlock, without_server};
use crate::support::Server;

/// A reply may take so long that no loaded machine is found too slow.
const PATIENT: [&str; 2] = ["--command-timeout", "20s"];

fn doctor(url: &str, args: &[&str]) -> Ended {
    let mut command = without_server(&["doctor"]);
    end(command.args(PATIENT).args(args).env("FAIRLOCK_URL", url))
}

#[test]
fn good_server_has_aligned_lines_and_exits_0() {
    let server = Server::tcp_with(&GOOD);
    let ended = doctor(&server.url(), &["--strict"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let (last, findings) = lines.split_last().expect("lines");
    assert_eq!(*last, "13 ok, 0 warnings, 0 errors");
    let beginning = format!("ok       {}  ", server.addr());
    for line in findings {
        assert!(line.starts_with(&beginning), "{line}");
    }
    assert!(!ended.stdout.contains("->"), "{ended:?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn warning_exits_0_and_with_strict_1() {
    let server = Server::tcp();
    let ended = doctor(&server.url(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let address = server.addr().to_string();
    let warning = format!("\nwarning  {address}  persistence: no append-only file");
    let width = address.len();
    let remedy = format!("\n         {:width$}  -> CONFIG SET appendonly yes", "");
    for line in [warning, remedy] {
        assert!(ended.stdout.contains(&line), "{line}: {ended:?}");
    }
    assert_eq!(doctor(&server.url(), &["--strict"]).code, Some(1));
}

#[test]
fn error_exits_1_and_quiet_leaves_out_what_is_ok() {
    let evicting = ["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"];
    let server = Server::tcp_with(&[&GOOD[..], &evicting].concat());
    let ended = doctor(&server.url(), &["-q"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(lines[0].starts_with("error    "), "{ended:?}");
    let remedy = "-> CONFIG SET maxmemory-policy noeviction. CONFIG REWRITE";
    assert!(lines[1].contains(remedy), "{ended:?}");
    assert_eq!(lines[2], "12 ok, 0 warnings, 1 error");
}

#[test]
fn json_has_one_finding_on_each_line() {
    let server = Server::tcp();
    let diagnosis = diagnose_with(&server.url(), &PATIENT);
    assert_eq!(diagnosis.code, Some(0), "{diagnosis:#?}");
    let checks: Vec<&str> = diagnosis.findings.iter().map(|one| &*one.check).collect();
    let expected = "connection round_trip version role replicas eviction memory persistence \
                    clients clock rights scripts messages";
    assert_eq!(checks.join(" "), expected);
    for finding in &diagnosis.findings {
        let is_bad = finding.check == "persistence";
        assert_eq!(finding.level == Level::Warning, is_bad, "{finding}");
        assert_eq!(finding.remedy.is_some(), is_bad, "{finding}");
        let address = server.addr().to_string();
        assert_eq!(finding.server.as_deref(), Some(&*address));
    }
}

#[test]
fn levels_have_colours_only_where_they_are_wanted() {
    let server = Server::tcp();
    let plain = end(&mut fairlock(&server, &["doctor"]));
    assert!(!plain.stdout.contains('\x1b'), "{plain:?}");
    let mut command = fairlock(&server, &["doctor"]);
    let forced = end(command.env("CLICOLOR_FORCE", "1").env("COLORTERM", "1"));
    for level in ["\x1b[32mok     \x1b[0m  ", "\x1b[33mwarning\x1b[0m  "] {
        assert!(forced.stdout.contains(level), "{forced:?}");
    }
}

#[test]
fn wrong_usage_exits_64() {
    let server = Server::tcp();
    for (url, args) in [
        (server.url(), &["--ttl", "5"]),
        (server.url(), &["--ttl", "1ms"]),
        ("http://127.0.0.1/".to_owned(), &["--ttl", "9s"]),
    ] {
        let mut command = without_server(&["doctor"]);
        let ended = end(command.args(args).env("FAIRLOCK_URL", url));
        assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    }
}

#[test]
fn exit_code_of_doctor_needs_no_reader() {
    let refusing = Server::tcp_with(&["--requirepass", "secret"]);
    let volatile = Server::tcp_with(&["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"]);
    for (server, code) in [(&refusing, 69), (&volatile, 1)] {
        let mut command = without_server(&["doctor"]);
        command.args(PATIENT).env("FAIRLOCK_URL", server.url());
        assert_eq!(code_unread(&mut command), Some(code));
    }
}
