//! Like managers have like shares of a name that they would keep, however many threads wait in each.

use std::sync::Mutex;
use std::thread;

use fairlock::LockManager;

use crate::behaviour::kept::keeper;
use crate::keeping::keep;
use crate::support::Server;

/// Turns in which each of the managers has to have its share.
const WINDOW: usize = 300;

/// Managers with so many threads lock and drop a name, all the time. In each window of turns since all
/// of them came, each has its share, within a tenth.
fn assert_like_shares(managers: &[(LockManager, usize)], name: &str) {
    let turns = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (who, (mgr, threads)) in managers.iter().enumerate() {
            for _ in 0..*threads {
                let turns = &turns;
                scope.spawn(move || {
                    loop {
                        let _guard = mgr.lock(name).unwrap();
                        let mut turns = turns.lock().unwrap();
                        let have_all_come = (0..managers.len()).all(|who| turns.contains(&who));
                        if !have_all_come && who == *turns.last().unwrap_or(&who) {
                            // Those that a manager has before another comes say nothing.
                            turns.clear();
                        }
                        turns.push(who);
                        if turns.len() > 10 * WINDOW {
                            break;
                        }
                    }
                });
            }
        }
    });
    let turns = turns.into_inner().unwrap();
    let share = WINDOW / managers.len();
    // At first, only some of the threads have come.
    for window in turns.chunks_exact(WINDOW).skip(1).take(8) {
        for (who, (_, threads)) in managers.iter().enumerate() {
            let had = window.iter().filter(|turn| **turn == who).count();
            assert!(
                had.abs_diff(share) <= share / 10,
                "{had} of {WINDOW} turns for manager {who} with {threads} threads: {window:?}"
            );
        }
    }
}

#[test]
fn managers_that_keep_a_name_have_like_shares() {
    let server = Server::start();
    for (round, threads) in [(0, [4, 4]), (1, [8, 8]), (2, [4, 8]), (3, [8, 4])] {
        let managers = threads.map(|threads| (keeper(server.url()), threads));
        // Some keep the name before the others come, some find it cold, and some are new to it.
        keep(&managers[0].0, &format!("n{round}"));
        assert_like_shares(&managers, &format!("n{round}"));
        assert_like_shares(&managers, &format!("n{round}"));
    }
}

#[test]
fn three_managers_with_unlike_threads_have_like_shares() {
    let server = Server::start();
    let managers = [4, 6, 12].map(|threads| (keeper(server.url()), threads));
    for _ in 0..2 {
        assert_like_shares(&managers, "n");
    }
}
