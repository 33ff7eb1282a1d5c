//! The replies of the scripts, good and malformed.

use super::*;
use crate::loss::PreviousHolder;
use crate::script::{LockSpec, Mode, Wait};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn token() -> Token {
    Token::parse(TOKEN).expect("a token")
}

/// Parses a reply to a call on a mutex. A bar ends a line.
fn parse(verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
    parse_as(LockSpec::MUTEX, verb, reply)
}

fn parse_of_permits(verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
    parse_as(LockSpec::any(Family::Permit), verb, reply)
}

fn parse_as(spec: LockSpec, verb: Verb, reply: &str) -> ParseResult<ScriptReply> {
    let value = redis::parse_redis_value(reply.replace('|', "\r\n").as_bytes()).expect("a value");
    ScriptReply::parse(&call(spec, verb), &value)
}

fn call(spec: LockSpec, verb: Verb) -> Call {
    let key = Key::new("fairlock", "n").expect("a good name");
    Call { spec, key, verb }
}

fn acquire() -> Verb {
    Verb::Acquire {
        token: token(),
        wait: Wait::Yes,
        params: "".into(),
    }
}

fn release() -> Verb {
    Verb::Release {
        token: token(),
        fence: 1,
        last: None,
        mode: Mode::Used,
    }
}

fn renewal() -> Verb {
    Verb::Renew {
        token: token(),
        fence: 1,
        params: "".into(),
    }
}

fn lookup() -> Verb {
    Verb::Lookup {
        tokens: vec![token()],
    }
}

#[test]
fn malformed_replies_to_acquire_and_release_are_refused() {
    let released = |answer: &str| parse(release(), answer);
    assert!(
        released("$8|released|")
            .is_ok_and(|reply| reply.now.is_none() && reply.outcome == Outcome::Released)
    );
    let granted = |bytes: Vec<u8>| {
        let call = call(LockSpec::MUTEX, acquire());
        ScriptReply::parse(&call, &Value::BulkString(bytes))
    };
    let short = |now: f64, left: f64, how: i8| {
        granted([&now.to_le_bytes()[..], &left.to_le_bytes(), &[how as u8]].concat())
    };
    let expected = Grant {
        token: token(),
        fence: 7,
        granted_at: 7,
        left: Duration::from_micros(5),
        previous: PreviousHolder::Lapsed,
        waiting: Some(false),
    };
    assert!(
        short(7.0, 5.0, 1).is_ok_and(|reply| reply.outcome == Outcome::Granted(expected))
            && short(7.0, 5.0, -1).is_ok()
    );
    for bad in [
        (7.5, 5.0, 1),
        (7.0, -5.0, 1),
        (7.0, 5.0, 3),
        (f64::NAN, 5.0, 1),
    ] {
        assert!(short(bad.0, bad.1, bad.2).is_err(), "{bad:?}");
    }
    assert!(granted(vec![0; 16]).is_err() && granted(vec![0; 18]).is_err());
    assert!(granted(vec![0; 17]).is_ok() && granted(b"granted".to_vec()).is_err());
    assert!(parse(acquire(), "*4|+granted|:7|:5|:1|").is_err());
    assert!(released("$7|already|").is_err() && parse(renewal(), "$8|released|").is_err());
}

#[test]
fn malformed_replies_to_renew_and_sync_are_refused() {
    let renewed = |more: u8| parse(renewal(), &format!("*6|+renewed|:7|:{more}|:1|:1|:1|"));
    assert!(parse(renewal(), "*5|+renewed|:7|:0|:1|:1|").is_err());
    assert!(renewed(0).is_ok() && renewed(1).is_ok_and(|reply| reply.more) && renewed(2).is_err());
    let synced = |entries: &str, known: u8| {
        let fields = format!("+{TOKEN}|:1|:1|:1|:0|{entries}|:1|:{known}|:1|:0");
        parse(
            Verb::Sync { newest: token() },
            &format!("*13|+synced|:7|:0|{fields}|"),
        )
    };
    assert!(synced(":1", 1).is_ok() && synced("+1", 1).is_err() && synced(":1", 2).is_err());
}

#[test]
fn malformed_votes_are_refused() {
    let parse = |verb, reply| parse_as(LockSpec::QUORUM, verb, reply);
    let propose = || Verb::Propose {
        token: token(),
        fence: 1,
        params: "".into(),
    };
    for good in [
        "*8|+granted|:7|:0|:1|:7|:5|:0|:-1|",
        "*5|+busy|:7|:0|:5|:1|",
        "*4|+outbid|:7|:0|:1|",
        "*3|+late|:7|:0|",
    ] {
        assert!(parse(propose(), good).is_ok(), "{good}");
    }
    for bad in [
        "*4|+granted|:7|:5|:1|",
        "*7|+granted|:7|:0|:1|:7|:5|:0|",
        "*5|+outbid|:7|:0|:1|:1|",
        "*5|+busy|:7|:0|:-5|:1|",
        "*3|+queued|:7|:0|",
    ] {
        assert!(parse(propose(), bad).is_err(), "{bad}");
    }
    let busy = "*5|+busy|:7|:0|:5|:1|";
    assert!(parse(renewal(), busy).is_ok());
    assert!(parse_as(LockSpec::MUTEX, renewal(), busy).is_err());
}

#[test]
fn malformed_replies_to_lookup_are_refused() {
    let looked_up = |owner: &str, row: &str, record: &str| {
        parse(
            lookup(),
            &format!("*3|{owner}|${}|{row}|{record}|", row.len()),
        )
    };
    let owner = format!("+{TOKEN}");
    // 2 and 2, 2 and half of something, 2 and nothing.
    let two = "\0\0\0\0\0\0\0@";
    let good = two.repeat(2);
    let half = format!("{two}\0\0\0\0\0\0\0?");
    assert!(looked_up(&owner, &good, "$-1").is_ok() && looked_up("$-1", &good, "+record").is_ok());
    assert!(looked_up("+somebody", &good, "$-1").is_err());
    assert!(looked_up(&owner, two, "$-1").is_err() && looked_up(&owner, &half, "$-1").is_err());
    assert!(looked_up(&owner, "5 7", "$-1").is_err() && looked_up(&owner, &good, ":1").is_err());
}

#[test]
fn malformed_replies_about_permits_are_refused() {
    let released = |answer: &str| parse_of_permits(release(), answer);
    assert!(released("*3|+already|:7|:0|").is_ok() && released("$8|released|").is_ok());
    // To the form with the holders' key alone.
    assert!(released("*3|+queued|:7|:0|").is_ok());
    for answer in ["$7|already|", "*3|+unknown|:7|:0|"] {
        assert!(released(answer).is_err(), "{answer}");
    }
    let short = |bytes: Vec<u8>| {
        let call = call(LockSpec::any(Family::Permit), acquire());
        ScriptReply::parse(&call, &Value::BulkString(bytes))
    };
    let packed = [
        &7f64.to_le_bytes()[..],
        &5f64.to_le_bytes(),
        &[1],
        &6f64.to_le_bytes(),
    ];
    let expected = Grant {
        token: token(),
        fence: 6,
        granted_at: 7,
        left: Duration::from_micros(5),
        previous: PreviousHolder::Lapsed,
        waiting: None,
    };
    assert!(short(packed.concat()).is_ok_and(|reply| reply.outcome == Outcome::Granted(expected)));
    assert!(short(packed[..3].concat()).is_err() && short(vec![0; 26]).is_err());
    let granted = |answer: &str| parse_of_permits(acquire(), answer);
    assert!(
        granted("*7|+granted|:7|:0|:7|:7|:5|:1|").is_ok()
            && granted("*4|+granted|:7|:5|:1|").is_err()
    );
    let synced = |owner: &str| {
        parse_of_permits(
            Verb::Sync { newest: token() },
            &format!("*13|+synced|:7|:0|+{owner}|:1|:1|:1|:0|:1|:1|:1|:1|:0|"),
        )
    };
    assert!(synced("").is_ok() && synced(TOKEN).is_err());
}

#[test]
fn malformed_lookups_of_permits_are_refused() {
    let looked_up =
        |tokens: &str| parse_of_permits(lookup(), &format!("*5|+present|:7|:0|:5|{tokens}|"));
    let holds = looked_up("*4|:9|:5|:1000|:0").expect("it holds");
    assert_eq!(
        holds
            .grants
            .iter()
            .map(|grant| (grant.token, grant.fence))
            .collect::<Vec<_>>(),
        [(token(), 9)]
    );
    assert!(looked_up(":1").is_ok_and(|reply| reply.grants.is_empty()) && looked_up(":0").is_ok());
    assert!(
        looked_up(":2").is_err()
            && looked_up("*3|:9|:5|:1000").is_err()
            && looked_up("$-1").is_err()
    );
}

#[test]
fn malformed_inspections_of_permits_are_refused() {
    let seen = |count: u8, holder: &str| {
        let end = format!(":1000|:0|:2|+{holder}|:-1|:0|");
        parse_of_permits(
            Verb::Inspect {
                waiters: 9,
                from: 0,
            },
            &format!("*13|+seen|:7|:0|+semaphore/1 5|:9|:0|:{count}|{end}"),
        )
    };
    let good = "semaphore/1 5 9 0 5 m 1000 0 0 2 host";
    let Ok(ScriptReply {
        outcome: Outcome::Inspection(inspection),
        ..
    }) = seen(1, good)
    else {
        panic!("it is good")
    };
    let [holder] = &inspection.holders[..] else {
        panic!("{inspection:?}")
    };
    assert_eq!((holder.fence, holder.granted_at, holder.permits), (9, 5, 2));
    assert!(
        seen(2, good).is_err()
            && seen(1, "semaphore/1 5 x 0 5 m").is_err()
            && seen(1, "semaphore/1").is_err()
    );
    let waiting = |queue: &str| {
        let parts = 9 + queue.matches('|').count();
        let verb = Verb::Inspect {
            waiters: 9,
            from: 0,
        };
        let seen = "+seen|:7|:0|+semaphore/1 5|:9|:0|:0|:-1|:0";
        parse_of_permits(verb, &format!("*{parts}|{seen}|{queue}"))
    };
    assert!(waiting("+record|:-1|").is_ok() && waiting("+record|").is_err());
}

#[test]
fn malformed_messages_are_refused() {
    let grant = format!("{TOKEN} 7 5 1000 -1 fairlock:{{a name}}");
    let good = format!("1 {grant}");
    let read = |message: &str| Grant::from_message("fairlock", message);
    assert!(read(&good).is_some_and(|(grant, key, _)| grant.fence == 7 && &*key.name == "a name"));
    let permit = format!("permit {grant}");
    assert!(
        read(&permit)
            .is_some_and(|(grant, _, family)| grant.fence == 7 && family == Family::Permit)
    );
    assert!(read(&format!("permit {permit}")).is_none() && read(&grant).is_none());
    let upper = TOKEN.to_uppercase();
    for (from, to) in [
        (" 7", " +7"),
        (" 7", " 07"),
        (" 7", "  7"),
        ("-1", "3"),
        ("-1", "-0"),
        (TOKEN, &*upper),
    ] {
        assert!(
            read(&good.replacen(from, to, 1)).is_none(),
            "{to:?} for {from:?}"
        );
    }
}
