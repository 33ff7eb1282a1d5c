//! Processes of a version without the flag of an owner that hears use the same names. Their scripts
//! tell nobody, and carry the flag along.

use std::sync::Arc;

use super::mutation::ScriptMutation;
use super::wanted::{A, B, C, DEAF, KEEPS, Name, TTL_MS, told};
use crate::script::{Grant, Mode, Outcome, ScriptReply, Token, Verb, Wait};

/// What makes the shipped scripts those of that version.
const WITHOUT_THE_FLAG: [ScriptMutation; 7] = [
    // It tells no owner.
    ScriptMutation {
        line: "if owner_manager and spare + 0 >= 65536 then",
        instead: "if false then",
    },
    // No grant says how many wait.
    ScriptMutation {
        line: "if new_spare ~= '' and new_spare + 0 >= 65536 then",
        instead: "if false then",
    },
    ScriptMutation {
        line: "spare and spare + 0 >= 65536 and waiter_records or nil",
        instead: "nil",
    },
    // The flag is a part of the spare.
    ScriptMutation {
        line: "spare = math.max(0, math.min((tonumber(spare) or 0) % 65536, granted_at + 65535 - fence))",
        instead: "spare = tonumber(spare) or 0",
    },
    // No renewal says that somebody waits.
    ScriptMutation {
        line: "waiter_records > 0 and waiter_records or nil }",
        instead: "nil }",
    },
    ScriptMutation {
        line: "if waiter_records > 0 then wanted[#wanted + 1] = i end",
        instead: "",
    },
    // It does not read the field.
    ScriptMutation {
        line: "'a', 'b'))",
        instead: "'a'))",
    },
];

fn old(source: &str) -> String {
    let changed =
        |source: String, change: &ScriptMutation| source.replace(change.line, change.instead);
    let old = WITHOUT_THE_FLAG.iter().fold(source.to_owned(), changed);
    assert!(!old.contains("65536"), "it knows the flag: {old}");
    old
}

impl Name {
    fn old(&mut self, manager: usize, verb: Verb) -> ScriptReply {
        self.reply_by(manager, verb, &old)
    }

    fn old_acquire(&mut self, manager: usize, token: u16) -> Outcome {
        let verb = Verb::Acquire {
            token: Token::numbered(token),
            wait: Wait::Yes,
            params: Arc::from(format!("{TTL_MS} 0 0 host\t1\tmain#1\t")),
        };
        self.old(manager, verb).outcome
    }

    fn old_sync(&mut self, manager: usize, newest: u16) -> Outcome {
        let newest = Token::numbered(newest);
        self.old(manager, Verb::Sync { newest }).outcome
    }
}

#[test]
fn each_change_makes_some_script_older() {
    let mut name = Name::new();
    for change in WITHOUT_THE_FLAG {
        Name::with(&[change]);
    }
    name.take(A, 1, KEEPS);
    assert!(matches!(name.old_acquire(B, 2), Outcome::Waiting { .. }));
    assert_eq!(name.told(), []);
}

/// Within a renewal of the owner, and at once if one more process waits that knows the flag.
#[test]
fn owner_hears_of_a_waiter_whose_scripts_tell_nobody() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.old_acquire(B, 2);
    name.old_sync(B, 2);
    assert_eq!(name.told(), []);
    assert!(matches!(
        name.renew(A, 1),
        Outcome::Renewed { waiting: true, .. }
    ));
    name.enqueue(C, 3, DEAF);
    assert_eq!(name.told(), told(A, fence));
}

#[test]
fn scripts_without_the_flag_grant_to_an_owner_that_hears() {
    let mut name = Name::new();
    let Outcome::Granted(first) = name.old_acquire(A, 1) else {
        panic!("it was free")
    };
    name.enqueue(B, 2, KEEPS);
    name.enqueue(C, 3, KEEPS);
    name.old(
        A,
        Verb::Release {
            token: Token::numbered(1),
            fence: first.fence,
            last: None,
            mode: Mode::Used,
        },
    );
    // The message says nothing about the other waiter, so its owner must take it that somebody waits.
    let [(B, text)] = &name.messages()[..] else {
        panic!("one message to the next owner")
    };
    let (grant, ..) = Grant::from_message("f", text).expect("a grant");
    assert_eq!((grant.token, grant.waiting), (Token::numbered(2), None));
    // The flag is in the record, so that scripts of this version tell it.
    let fence = name.fence();
    name.sync(C, 3);
    assert_eq!(name.told(), told(B, fence));
    let request = name.field("a").expect("a request");
    assert!(request.ends_with(b" m1 10000 0 0 131071"));
    let label = name.field("l").expect("a label");
    assert!(label.starts_with(b"host\t"));
}

/// P2 (rising fences): whichever version ends the lease, no fence that a guard may have had comes
/// again. The flag does not change how many are reserved, but to scripts that do not know it.
#[test]
fn fences_rise_whichever_version_ends_the_lease() {
    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.now += 1000 * TTL_MS;
    name.sync(B, 2);
    assert_eq!(name.fence(), fence + 65_535);

    let mut name = Name::new();
    let fence = name.take(A, 1, KEEPS);
    name.now += 1000 * TTL_MS;
    name.old_sync(B, 2);
    assert_eq!(name.fence(), fence + 131_071);
    let next = name.take(B, 2, DEAF);
    assert!(next > fence + 131_071);
}
