//! Every string within the length limit is a name, and no two names share a lock.

use std::{collections::HashSet, time::Duration};

use fairlock::{LockManager, LockOptions, inspect::LockState};

use crate::{
    backend::{Backend, on_both_stores},
    managers::patient,
    support::SLACK,
};

on_both_stores! {
    p10_unusual_names_work_and_never_collide,
    p4_a_grant_message_carries_any_name_to_another_manager,
}

fn p10_unusual_names_work_and_never_collide(backend: &Backend) {
    let mgr = patient(backend);
    let mut names: Vec<String> = [
        "a",
        "A",
        "a b",
        " a",
        "a ",
        "a\nb",
        "a\r\nb",
        "\t",
        "\0",
        "\"",
        "'",
        "`",
        "\\",
        "\\x00",
        "{",
        "}",
        "{}",
        "}{",
        "}x",
        "{a}",
        "a{b}c",
        "%",
        "%%",
        "%7B",
        "%7b",
        "%257B",
        "%7D",
        "%25",
        "a:q",
        "a}:q",
        "{a}:q",
        ":",
        "*",
        "?",
        "[a]",
        "fairlock:{a}",
        "🦀",
        "👩‍👩‍👧",
        "é",
        "e\u{301}",
        "名前",
        "\u{202e}",
        "\u{feff}",
    ]
    .map(str::to_owned)
    .into();
    names.extend([
        "x".repeat(512),
        "é".repeat(256),
        "{".repeat(512),
        "🦀".repeat(128),
    ]);
    let guards: Vec<_> = names
        .iter()
        .map(|name| {
            mgr.try_lock(name)
                .unwrap()
                .unwrap_or_else(|| panic!("{name:?} collides"))
        })
        .collect();
    for (guard, name) in guards.iter().zip(&names) {
        assert_eq!(guard.name(), name);
        assert!(mgr.try_lock(name).unwrap().is_none(), "{name:?}");
        let info = mgr.inspect(name).unwrap().unwrap();
        assert_eq!((&*info.name, info.fence), (name.as_str(), guard.fence()));
        assert_eq!(info.state, LockState::Held);
    }
    // Every name can be waited for and is handed over.
    let waiters: Vec<_> = names
        .iter()
        .map(|name| mgr.enqueue(name).unwrap())
        .collect();
    for guard in guards {
        guard.unlock().unwrap();
    }
    let guards: Vec<_> = waiters
        .into_iter()
        .map(|waiter| waiter.wait().unwrap())
        .collect();
    for (guard, name) in guards.iter().zip(&names) {
        assert_eq!(guard.name(), name);
        guard.check().unwrap();
    }
    let listed: Vec<String> = mgr
        .list("*")
        .map(|info| info.unwrap().name.to_string())
        .collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(
        listed.into_iter().collect::<HashSet<_>>(),
        names.into_iter().collect::<HashSet<_>>()
    );
}

fn p4_a_grant_message_carries_any_name_to_another_manager(backend: &Backend) {
    // The check period is longer than the test, so only the message can bring the grant in time.
    let slow = || {
        LockManager::builder(backend)
            .options(LockOptions::new().ttl(Duration::from_secs(60)))
            .check_period(Duration::from_secs(30))
            .horizon(Duration::from_secs(32))
            .build()
            .unwrap()
    };
    let (here, there) = (slow(), slow());
    for name in ["a b", "a\nb c", " ", "{x} %", "🦀 🦀"] {
        let guard = here.lock(name).unwrap();
        let mut waiter = there.enqueue(name).unwrap();
        guard.unlock().unwrap();
        let next = waiter.wait_for(SLACK).unwrap();
        assert_eq!(
            next.unwrap_or_else(|| panic!("{name:?} was not handed over"))
                .name(),
            name
        );
    }
}
