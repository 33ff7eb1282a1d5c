//! A connection to a server that says anything: the handshake, a pipeline of calls, and a page of keys.

use super::replies::granted;
use super::shapes::{grants, is_documented};
use super::tape::Tape;
use super::values::{About, any_call};
use crate::error::Error;
use crate::key::Key;
use crate::script::{Call, Outcome, Token, Value, values_of};
use crate::store::clock::Time;
use crate::store::{CallResult, ScriptedPeer, StoreFault};

/// A few choices, and then the server's bytes.
pub fn wire(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let key = Key::new("fairlock", "a").expect("a good name");
    let tokens: Vec<Token> = (0..4).map(Token::numbered).collect();
    let about = About {
        tokens: &tokens,
        now: 0,
    };
    let (does, number) = (tape.below(4), 1 + tape.below(3));
    let calls: Vec<Call> = (0..number)
        .map(|_| any_call(&key, &about, &mut tape))
        .collect();
    let url = tape.choose(&[
        "redis+unix:///s",
        "redis+unix:///s?user=u&pass=hunter2&db=3",
    ]);
    let mut spoken = Vec::new();
    if does == 0 && tape.one_in(2) {
        let (seconds, micros) = (tape.number(), tape.number());
        spoken.extend(
            format!("*2\r\n+version\r\n+7.2.5\r\n*2\r\n+{seconds}\r\n+{micros}\r\n").bytes(),
        );
    }
    spoken.extend(tape.rest());
    let mut server = ScriptedPeer::new(url, &spoken);
    match does {
        0 => {
            let greeted = server.shake_hands();
            let told = greeted.as_ref().err().map(|fault| fault.to_string());
            server.anchors().for_each(dates);
            if greeted.is_ok() {
                let _ = server.exchange(&calls);
                server.anchors().for_each(dates);
            }
            drop(told);
        }
        1 => check(server.scan()),
        _ => {
            let answers = server.exchange(&calls);
            are_what_came(&calls, &answers, &values_of(&spoken));
            server.anchors().for_each(dates);
            answers.into_iter().for_each(|result| check(result.answer));
        }
    }
}

/// No sum that is made with it overflows.
fn dates(anchor: crate::store::Anchor) {
    let _ = (
        anchor.server_time_at_least(Time::NEVER),
        anchor.local_time_at_least(u64::MAX),
    );
}

fn check<T>(outcome: Result<T, StoreFault>) {
    if let Err(fault) = outcome {
        let _ = (
            fault.is_transient(),
            fault.is_ambiguous(),
            fault.is_closed(),
            fault.to_string(),
        );
        let error = Error::from(fault);
        assert!(
            !matches!(error, Error::Closed | Error::Lost { .. }),
            "{error:?}"
        );
        let _ = error.to_string();
    }
}

/// The first answer belongs to the first call, and so on; what comes after one that is none belongs to nobody.
fn are_what_came(calls: &[Call], answers: &[CallResult], came: &[Value]) {
    assert_eq!(answers.len(), calls.len());
    let mut came = came.iter();
    for (call, answer) in calls.iter().zip(answers) {
        let answer = &answer.answer;
        let value = came.next();
        // It may be put again, and then answered out of turn.
        if let Some(Value::ServerError(_)) = value {
            return;
        }
        let Some(value) = value.filter(|value| is_documented(call, value)) else {
            assert!(answer.is_err(), "{call:?}: {value:?} is {answer:?}");
            return;
        };
        match answer {
            Ok(answer) => assert_eq!(
                granted(&answer.reply),
                grants(call, value),
                "{call:?}: {value:?}"
            ),
            Err(StoreFault::Server { code, .. }) if code == "TRYAGAIN" => {}
            Err(_) => panic!("{call:?}: {value:?} is {answer:?}"),
        }
        assert!(!matches!(answer, Ok(answer) if answer.reply.outcome == Outcome::Queued));
    }
}
