//! Tables, JSON and exit codes.

use crate::look::{is_golden, masked};
use crate::process::{Ended, code_unread, end, without_server};
use crate::support::Server;

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

#[test]
fn diagnosis_of_a_plain_server_is_as_its_golden_files_have_it() {
    let server = Server::tcp();
    for (name, args) in [("doctor_table.txt", &[][..]), ("doctor.jsonl", &["--json"])] {
        let ended = doctor(&server, args);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        let found = ended.stdout.replace(&server.addr().to_string(), "SERVER");
        let unindented: Vec<&str> = found.lines().map(str::trim_start).collect();
        is_golden(name, &masked(&unindented.join("\n")));
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
fn exit_code_of_doctor_needs_no_reader() {
    let refusing = Server::tcp_with(&["--requirepass", "secret"]);
    let evicting = Server::tcp_with(&EVICTING);
    for (server, code) in [(&refusing, 69), (&evicting, 1)] {
        let mut command = without_server(&["doctor"]);
        command.args(PATIENT).env("FAIRLOCK_URL", server.url());
        assert_eq!(code_unread(&mut command), Some(code));
    }
}
