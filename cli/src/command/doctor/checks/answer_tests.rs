//! Answers that are missing, late or refused.

use std::time::Duration;

use super::answer::{Info, Unknown};
use super::facts::{Settings, WorkAnswers};
use super::tests::{
    Change, INFOS, MS, answers, assert_finds, diagnosis_of, limits, of, shown, single,
};
use super::{Check, Diagnosis, Level, Limits, diagnose};

#[test]
fn what_may_not_be_asked_is_not_known_and_no_error() {
    let mut answers = answers(INFOS[1], (&[], &[]));
    answers.info = Err(Unknown::NoRight("INFO"));
    for value in answers.settings.0.values_mut() {
        *value = Err(Unknown::NoCommand("CONFIG GET"));
    }
    let diagnosis = diagnosis_of(&single(answers));
    assert_eq!(diagnosis.level(), Level::Ok, "{diagnosis:#?}");
    assert_finds(&diagnosis, Check::Role, Level::Ok, "no right to INFO");
    assert_finds(
        &diagnosis,
        Check::Eviction,
        Level::Ok,
        "the server has no CONFIG GET",
    );
    assert_finds(&diagnosis, Check::Clients, Level::Ok, "no right to INFO");
}

/// INFO has the policy, too.
#[test]
fn eviction_is_known_from_either_command() {
    let evicting: Change<'_> = (
        &[("maxmemory_policy", "allkeys-lru"), ("maxmemory", "1")],
        &[],
    );
    let mut without_config = answers(INFOS[1], evicting);
    without_config.settings = Settings::default();
    assert_finds(
        &diagnosis_of(&single(without_config)),
        Check::Eviction,
        Level::Error,
        "allkeys-lru",
    );
    let limited: [(&'static str, &str); 2] =
        [("maxmemory-policy", "volatile-lru"), ("maxmemory", "1")];
    assert_finds(
        &without_info(&limited),
        Check::Eviction,
        Level::Error,
        "volatile-lru",
    );
}

fn without_info(settings: &[(&'static str, &str)]) -> Diagnosis {
    let mut answers = answers(INFOS[1], (&[], settings));
    answers.info = Err(Unknown::NoRight("INFO"));
    diagnosis_of(&single(answers))
}

#[test]
fn eviction_is_an_error_only_if_a_maxmemory_is_known() {
    let unlimited = without_info(&[("maxmemory-policy", "volatile-lru")]);
    assert_finds(&unlimited, Check::Eviction, Level::Warning, "once set");
    let mut answers = answers(INFOS[1], (&[], &[]));
    answers.info = Ok(Info::parse("maxmemory_policy:allkeys-lru"));
    answers.settings = Settings::default();
    let unknown = diagnosis_of(&single(answers));
    assert_finds(&unknown, Check::Eviction, Level::Warning, "not known");
}

#[test]
fn snapshots_that_may_exist_are_not_known_without_config() {
    let mut answers = answers(INFOS[1], (&[("aof_enabled", "0")], &[]));
    for value in answers.settings.0.values_mut() {
        *value = Err(Unknown::NoRight("CONFIG GET"));
    }
    assert_finds(
        &diagnosis_of(&single(answers)),
        Check::Persistence,
        Level::Warning,
        "snapshots are not known",
    );
}

#[test]
fn round_trip_is_compared_with_the_timeout_and_the_ttl() {
    // R is T, 500 ms; with a ttl of 2 s it is 200 ms.
    for (slowest, ttl, level) in [
        (49, 10, Level::Ok),
        (50, 10, Level::Warning),
        (249, 10, Level::Warning),
        (250, 10, Level::Error),
        (19, 2, Level::Ok),
        (100, 2, Level::Error),
    ] {
        let mut answers = answers(INFOS[1], (&[], &[]));
        answers.round_trips = vec![MS, MS * slowest, MS];
        let limits = Limits {
            ttl: Duration::from_secs(ttl),
            ..limits()
        };
        let diagnosis = diagnose(&single(answers), &limits);
        assert_finds(
            &diagnosis,
            Check::RoundTrip,
            level,
            &format!("{slowest}.0ms"),
        );
    }
    let mut slow = answers(INFOS[1], (&[], &[]));
    slow.round_trips = vec![MS * 300];
    // 300 ms is less than a tenth of the proposed number.
    assert_finds(
        &diagnosis_of(&single(slow)),
        Check::RoundTrip,
        Level::Error,
        "3.5s",
    );
}

#[test]
fn connecting_must_leave_half_of_its_time() {
    for (took, level) in [(249, Level::Ok), (250, Level::Warning)] {
        let mut answers = answers(INFOS[1], (&[], &[]));
        answers.connected_in = MS * took;
        assert_finds(
            &diagnosis_of(&single(answers)),
            Check::Connection,
            level,
            "connect",
        );
    }
}

#[test]
fn server_that_stops_answering_is_an_error() {
    let mut answers = answers(INFOS[1], (&[], &[]));
    answers.stopped = Some("timed out".to_owned());
    assert_finds(
        &diagnosis_of(&single(answers)),
        Check::Connection,
        Level::Error,
        "timed out",
    );
}

#[test]
fn work_that_is_refused_is_an_error_with_its_rule() {
    let with = |work: WorkAnswers| {
        let mut answers = answers(INFOS[1], (&[], &[]));
        answers.work = Some(work);
        diagnosis_of(&single(answers))
    };
    let lacking = vec!["+hdel".to_owned(), "&fairlock:grants:*".to_owned()];
    let refused = with(WorkAnswers {
        lacking: Ok(lacking),
        absent: Vec::new(),
        scripts: Err(Unknown::NoRight("EVAL")),
        message: Some(Err(Unknown::NoRight("SUBSCRIBE"))),
    });
    let rule = "ACL SETUSER billing +hdel &fairlock:grants:*";
    assert_finds(&refused, Check::Rights, Level::Error, rule);
    assert_finds(&refused, Check::Scripts, Level::Error, "no right to EVAL");
    assert_finds(&refused, Check::Messages, Level::Error, "SUBSCRIBE");
    let unanswered = || Unknown::Unanswered("timed out".to_owned());
    let silent = with(WorkAnswers {
        lacking: Err(unanswered()),
        absent: Vec::new(),
        scripts: Err(unanswered()),
        message: Some(Err(unanswered())),
    });
    for check in [Check::Rights, Check::Scripts, Check::Messages] {
        assert_finds(&silent, check, Level::Ok, "not known: timed out");
    }
    let broken = with(WorkAnswers {
        lacking: Err(Unknown::Failed("why".to_owned())),
        absent: Vec::new(),
        scripts: Err(Unknown::NoCommand("EVALSHA")),
        message: Some(Err(Unknown::Failed("timed out".to_owned()))),
    });
    assert_finds(&broken, Check::Rights, Level::Ok, "not known: why");
    assert_finds(&broken, Check::Scripts, Level::Error, "rename-command");
    // The check period takes the place of a message.
    assert_finds(&broken, Check::Messages, Level::Warning, "timed out");
}

#[test]
fn finding_is_one_line() {
    let mut answers = answers(INFOS[1], (&[("maxmemory_policy", "allkeys-lru")], &[]));
    answers.work = None;
    let diagnosis = diagnosis_of(&single(answers));
    let line = "a:1 eviction: maxmemory-policy is allkeys-lru: a maxmemory, once set, lets it \
                evict locks; CONFIG SET maxmemory-policy noeviction. CONFIG REWRITE keeps that \
                over a restart";
    assert_eq!(shown(of(&diagnosis, Check::Eviction)[0]), line);
    let mut lines = diagnosis.findings.iter().map(shown);
    assert!(
        lines.all(|line| line.lines().count() == 1),
        "{diagnosis:#?}"
    );
    assert_eq!(diagnosis.findings.len(), 10, "{diagnosis:#?}");
}
