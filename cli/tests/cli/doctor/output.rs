//! Tables, JSON and exit codes.

use super::*;

/// A reply may take so long that no loaded machine is found too slow.
fn doctor(server: &Server, args: &str) -> Command {
    let line = format!("doctor --command-timeout 20s {args}");
    at(&server.url(), &line)
}

#[test]
fn diagnosis_of_a_plain_server_is_as_its_golden_files_have_it() {
    let server = Server::tcp();
    for (name, args) in [("doctor_table.txt", ""), ("doctor.jsonl", "--json")] {
        let found = printed(doctor(&server, args));
        let found = found.replace(&server.addr().to_string(), "SERVER");
        let unindented: Vec<&str> = found.lines().map(str::trim_start).collect();
        is_golden(name, &masked(&unindented.join("\n")));
    }
}

#[test]
fn worst_finding_makes_the_exit_code_and_quiet_leaves_out_what_is_ok() {
    let evicting = ["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"];
    let (warned, failed) = (Server::tcp(), Server::tcp_with(&evicting));
    let refusing = Server::tcp_with(&["--requirepass", "secret"]);
    for (server, args, code, rows) in [
        (&warned, "--strict", 1, 15),
        (&warned, "-q", 0, 4),
        (&failed, "-q", 1, 6),
        (&refusing, "-q", 69, 4),
    ] {
        let ended = exits(doctor(server, args), code);
        assert_eq!(ended.stdout.lines().count(), rows, "{ended:?}");
        // Nobody needs to read it.
        let unread = code_unread(&mut doctor(server, args), || ());
        assert_eq!(unread, Some(code), "{args}");
    }
}
