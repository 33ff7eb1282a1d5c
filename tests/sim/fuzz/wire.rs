//! A connection to a server that sends any bytes: the handshake, a pipeline of calls, a page of
//! keys.

use super::input::FuzzInput;
use super::replies::granted;
use super::shapes::{grants, is_documented};
use super::values::{ServerFacts, any_call};
use crate::error::Error;
use crate::key::Key;
use crate::script::{Call, Outcome, Token, Value, values_of};
use crate::store::clock::Time;
use crate::store::{CallResult, ScriptedPeer, StoreFault};

/// A few choices, and then the server's bytes.
pub fn wire(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let key = Key::new("fairlock", "a").expect("a good name");
    let tokens: Vec<Token> = (0..4).map(Token::numbered).collect();
    let facts = ServerFacts {
        tokens: &tokens,
        now: 0,
    };
    let operation = input.below(4);
    let number = 1 + input.below(3);
    let calls: Vec<Call> = (0..number)
        .map(|_| any_call(&key, &facts, &mut input))
        .collect();
    let url = input.choose(&[
        "redis+unix:///s",
        "redis+unix:///s?user=u&pass=hunter2&db=3",
    ]);
    let mut server_bytes = Vec::new();
    if operation == 0 && input.one_in(2) {
        let seconds = input.number();
        let micros = input.number();
        server_bytes.extend(
            format!("*2\r\n+version\r\n+7.2.5\r\n*2\r\n+{seconds}\r\n+{micros}\r\n").bytes(),
        );
    }
    server_bytes.extend(input.rest());
    let mut server = ScriptedPeer::new(url, &server_bytes);
    match operation {
        0 => {
            let greeted = server.shake_hands();
            if let Err(fault) = &greeted {
                let _ = fault.to_string();
            }
            server.anchors().for_each(check_anchor);
            if greeted.is_ok() {
                let _ = server.exchange(&calls);
                server.anchors().for_each(check_anchor);
            }
        }
        1 => check_fault(server.scan()),
        _ => {
            let answers = server.exchange(&calls);
            check_answers(&calls, &answers, &values_of(&server_bytes));
            server.anchors().for_each(check_anchor);
            answers
                .into_iter()
                .for_each(|result| check_fault(result.answer));
        }
    }
}

/// Sums with the anchor's times never overflow.
fn check_anchor(anchor: crate::store::Anchor) {
    let _ = (
        anchor.server_time_at_least(Time::NEVER),
        anchor.local_time_at_least(u64::MAX),
    );
}

fn check_fault<T>(outcome: Result<T, StoreFault>) {
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

/// The first answer belongs to the first call, and so on. After a value that is no answer, no later
/// value belongs to any call.
fn check_answers(calls: &[Call], answers: &[CallResult], values: &[Value]) {
    assert_eq!(answers.len(), calls.len());
    let mut values = values.iter();
    for (call, answer) in calls.iter().zip(answers) {
        let answer = &answer.answer;
        let value = values.next();
        // The call may be sent again, and then its answer comes later than its turn.
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
