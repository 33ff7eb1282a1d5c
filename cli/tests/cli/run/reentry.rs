//! A run inside a run: what it learns from the one around it.

use super::*;

/// What the command of an inner run prints.
const RAN: &str = "it ran\n";

/// A run with the options of `outer`, around one with those of `inner`, which is behind `way`.
fn inside(server: &Server, outer: &str, way: &str, inner: &str) -> Ended {
    let script = format!("{way} \"$BINARY\" run {inner} -- echo it ran");
    end(run_script(server, outer, &script))
}

#[track_caller]
fn is_refused(ended: &Ended, text: &str) {
    assert_eq!((ended.code, &*ended.stdout), (Some(64), ""), "{ended:?}");
    ended.says(text);
}

#[test]
fn run_that_would_wait_for_its_ancestor_is_refused_at_once() {
    let server = Server::start();
    for (outer, inner) in [
        ("a", "a"),
        ("--exclusive b", "--exclusive b"),
        ("--exclusive b", "--shared b"),
        ("--shared b", "--exclusive b"),
        ("--permits 2/2 c", "--permits 1/2 c"),
        ("--permits 1/2 c", "--permits 2/2 c"),
    ] {
        for way in ["", "timeout 60", "nohup", "\"$BINARY\" run between --"] {
            let ended = inside(&server, outer, way, inner);
            is_refused(&ended, ": held by the run around this one (pid ");
            is_refused(&ended, "--reenter");
        }
    }
    // Without a wait it is a conflict.
    for (options, code) in [("-n", 75), ("-n -E 9", 9)] {
        assert_eq!(
            inside(&server, "a", "", &format!("{options} a")).code,
            Some(code)
        );
    }
}

#[test]
fn run_beside_its_ancestor_gets_what_is_free() {
    let server = Server::start();
    let second = Server::start();
    for (outer, inner) in [
        ("--permits 1/2 c", "--permits 1/2 c"),
        ("--shared b", "--shared b"),
        ("a", "d"),
        ("a", "--prefix other a"),
        ("a", &*format!("--url {} a", second.url())),
    ] {
        let ended = inside(&server, outer, "", inner);
        assert_eq!((ended.code, &*ended.stdout), (Some(0), RAN), "{ended:?}");
    }
}

#[test]
fn reader_in_a_reader_is_refused_behind_a_writer() {
    let server = Server::start();
    let script = "echo up; read go; \"$BINARY\" run --shared a -- echo it ran";
    let mut run = Run::reading(&server, "--shared a", script);
    assert_eq!(run.line(), "up");
    let mut writer = Run::script(&server, "--exclusive a", "true");
    until_queued(&server, "a", 1);
    run.end_input();
    is_refused(&run.ended(), "would wait for itself");
    writer.ends(0, "");
}

#[test]
fn run_that_reenters_joins_the_one_around_it() {
    let server = Server::start();
    let print = "echo $FAIRLOCK_NAME,$FAIRLOCK_FENCE,$FAIRLOCK_PREVIOUS";
    for (outer, inner) in [
        ("a", "a"),
        ("--exclusive b", "--exclusive b"),
        ("--exclusive b", "--shared b"),
        ("--shared b", "--shared b"),
        ("--permits 2/2 c", "--permits 1/2 c"),
    ] {
        // A run with another lock is between them.
        let script = format!(
            "export INNER='{print}; exit 3'; {print}; \"$BINARY\" run d -- \
             sh -c '\"$BINARY\" run --reenter {inner} -- sh -c \"$INNER\"'"
        );
        let ended = exits(run_script(&server, outer, &script), 3);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1], "{ended:?}");
    }
    // Its program cannot be executed.
    let folder = tempdir().expect("a folder");
    let mut command = run_script(&server, "a", "\"$BINARY\" run --reenter a -- \"$PROGRAM\"");
    gives(command.env("PROGRAM", broken_program(&folder)), 126, "");
    // Without one around it, it takes the lock.
    let _run = Run::asleep(&server, "--reenter a");
    assert!(is_held(&server, "a"));
}

#[test]
fn run_that_cannot_join_says_why() {
    let server = Server::start();
    // The same number, but another process, as in another container.
    let other = r#"FAIRLOCK_HELD=$(echo "$FAIRLOCK_HELD" | sed 's/"start":[0-9]*/"start":1/')"#;
    for (outer, way, inner) in [
        ("--shared b", "", "--reenter --exclusive b"),
        ("--permits 1/2 c", "", "--reenter --permits 2/2 c"),
        ("a", "setsid -w", "--reenter a"),
        ("a", other, "--reenter a"),
    ] {
        let ended = inside(&server, outer, way, inner);
        is_refused(&ended, "this one cannot join it");
    }
    // A run beside it.
    let mut run = Run::script(&server, "a", "echo $FAIRLOCK_HELD; exec sleep 60");
    let mut beside = run_script(&server, "--reenter a", "echo it ran");
    let ended = end(beside.env("FAIRLOCK_HELD", run.line()));
    is_refused(&ended, "this one cannot join it");
}

#[test]
fn daemon_of_a_run_that_ended_takes_the_lock() {
    let server = Server::start();
    for (outer, name) in [("a", "a"), ("--hold-at-least 2s b", "b")] {
        let held = end(run_script(&server, outer, "echo $FAIRLOCK_HELD")).stdout;
        assert!(held.contains(&format!("\"name\":\"{name}\"")), "{held}");
        let late = |options: &str, code, stdout: &str| {
            let mut late = run_script(&server, &format!("{options} {name}"), "echo it ran");
            gives(late.env("FAIRLOCK_HELD", held.trim_end()), code, stdout);
        };
        late("", 0, RAN);
        // Another client has it under another fence.
        let _guard = manager(&server).lock(name).unwrap();
        late("--wait 100ms", 75, "");
        late("--reenter -n", 75, "");
    }
}

#[test]
fn same_servers_by_another_name_are_recognized() {
    let server = Server::tcp();
    let other = server.url().replace("127.0.0.1", "localhost");
    let ended = inside(&server, "a", "", &format!("--url {other} a"));
    is_refused(&ended, "would wait for itself");
    // A quorum, too.
    let servers = [(); 3].map(|()| Server::start());
    let inner = "\"$BINARY\" run --ttl 2s a -- echo it ran";
    let mut outer = at(&urls(&servers), "run --ttl 2s --wait 1m a -- sh -c");
    is_refused(&end(outer.arg(inner)), "would wait for itself");
}

#[test]
fn inner_call_goes_to_the_redis_of_the_outer_one() {
    let server = Server::tcp_with(&["--requirepass", "a secret"]);
    let dir = tempdir().expect("a folder");
    fs::write(dir.path().join("password"), "a secret\n").expect("written");
    let mut command = bare(&format!(
        "FAIRLOCK_CLUSTER=127.0.0.1:1 FAIRLOCK_PASSWORD=wrong run --url {} --prefix other \
         --password-file password --command-timeout 1s a -- sh -c 'cd /; \"$BINARY\" ls; env'",
        server.url()
    ));
    let ended = exits(command.current_dir(dir.path()), 0);
    ended.shows("held");
    assert!(!ended.stdout.contains("a secret"), "{ended:?}");
}
