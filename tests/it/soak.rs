//! The checker of the soak (`tests/soak`) can find what it is there for. On no store: the histories are made by hand.

#[path = "../soak/checker.rs"]
mod checker;
#[path = "../soak/history.rs"]
mod history;

use std::time::Duration;

use checker::{Finding, Rule, Terms, judge, longest_wait};
use history::History;

/// In these histories a nanosecond is what a ms would be to people, and a lease lasts for 2,000 of them.
const TERMS: Terms = Terms {
    ttl: Duration::from_nanos(2000),
    check_period: Duration::from_nanos(250),
    command_timeout: Duration::from_nanos(200),
    horizon: Duration::from_nanos(1000),
    slack: Duration::from_nanos(100),
};

/// The longest that a crash may cost by these terms.
const CRASH: u64 = 2000 + 250 + 200 + 100;

/// Lines without the wall time, which decides nothing.
fn read(lines: &[&str]) -> History {
    let whole = |line: &&str| format!("{}\n", line.replacen(' ', " 0 ", 1));
    let text: String = lines.iter().map(whole).collect();
    History::read([text.as_str()]).unwrap()
}

fn found(lines: &[&str], rule: Rule) -> Finding {
    judge(&read(lines), &TERMS).into_iter().find(|finding| finding.rule == rule).unwrap()
}

/// What is broken in a history, and no more than that.
#[track_caller]
fn breaks(lines: &[&str], rules: &[Rule]) {
    let findings = judge(&read(lines), &TERMS);
    let broken: Vec<_> = findings.iter().filter(|f| !f.broken.is_empty()).map(|f| f.rule).collect();
    assert_eq!(broken, rules, "{findings:#?}");
}

/// One after the other, and nothing that could be blamed.
const CLEAN: [&str; 19] = [
    "100 a.0 ask a1 n enqueue",
    "110 a.0 queued a1",
    "120 a.0 granted a1 7",
    "121 a.0 held a1 122",
    "130 b.0 ask b1 n enqueue",
    "140 b.0 queued b1",
    "150 resource write a1 n 7 accepted",
    "160 a.0 held a1 161",
    "170 a.0 release a1",
    "175 b.0 granted b1 8",
    "180 a.0 ended a1 released",
    "185 b.0 held b1 186",
    "190 resource write b1 n 8 accepted",
    "195 resource write a1 n 7 refused",
    "200 b.0 held b1 201",
    "205 b.0 lost b1",
    "206 b.0 release b1",
    "210 b.0 ended b1 lost:Expired",
    "220 - key fairlock:{n} 3600000",
];

#[test]
fn a_history_without_faults_passes_and_everything_in_it_is_judged() {
    breaks(&CLEAN, &[]);
    for rule in [Rule::Exclusion, Rule::Fences, Rule::WakeUp, Rule::Loss, Rule::End, Rule::Resource, Rule::Keys] {
        assert!(found(&CLEAN, rule).judged > 0, "{rule:?}");
    }
    assert_eq!(longest_wait(&read(&CLEAN), &TERMS), Duration::from_nanos(45));
}

#[test]
fn the_line_that_somebody_was_killed_over_is_passed_over_and_any_other_is_not() {
    let history = History::read(["100 0 a.0 ask a1 n lock\n130 0 a.0 gran"]).unwrap();
    assert_eq!(history.attempts.len(), 1);
    let wrong = [
        "1 0 a.0 granted a1 5",
        "1 0 - end 3",
        "1 a.0 ask a1 n",
        "1 0 - what",
        "x 0 a.0 ask a1 n lock",
        "1 0 a.0 ask a1 n lock\n2 0 a.0 ask a1 n lock",
    ];
    for wrong in wrong {
        History::read([format!("{wrong}\n").as_str()]).unwrap_err();
    }
}

/// Two whose holdings share a moment.
const OVERLAP: [&str; 10] = [
    "100 a.0 ask a1 n lock",
    "120 a.0 granted a1 7",
    "121 a.0 held a1 122",
    "130 b.0 ask b1 n lock",
    "150 b.0 granted b1 8",
    "151 b.0 held b1 152",
    "160 a.0 held a1 161",
    "170 b.0 held b1 171",
    "180 a.0 ended a1 released",
    "190 b.0 ended b1 released",
];

#[test]
fn two_holders_at_once_are_found() {
    breaks(&OVERLAP, &[Rule::Exclusion]);
}

#[test]
fn two_holders_at_once_are_spared_only_around_a_loss_of_data() {
    let mut lines = OVERLAP.to_vec();
    lines.extend(["140 - begin 1 flushall", "141 - end 1"]);
    breaks(&lines, &[]);
    assert_eq!(found(&lines, Rule::Exclusion).spared, 1);
    let late = [&OVERLAP[..], &["300 - begin 1 flushall", "301 - end 1"]].concat();
    breaks(&late, &[Rule::Exclusion]);
    let harmless = [&OVERLAP[..], &["140 - begin 1 server-killed", "141 - end 1"]].concat();
    breaks(&harmless, &[Rule::Exclusion]);
}

#[test]
fn a_single_look_within_the_holding_of_another_is_found() {
    let mut lines = OVERLAP.to_vec();
    lines.remove(7);
    breaks(&lines, &[Rule::Exclusion]);
}

#[test]
fn a_fence_that_does_not_rise_is_found_also_over_a_loss_of_data() {
    for fence in [7, 6] {
        let second = format!("230 c.0 granted c1 {fence}");
        let lines = [
            "100 a.0 ask a1 n lock",
            "120 a.0 granted a1 7",
            "180 a.0 ended a1 released",
            "190 - begin 1 flushall",
            "191 - end 1",
            "220 c.0 ask c1 n lock",
            &second,
            "240 c.0 ended c1 released",
        ];
        breaks(&lines, &[Rule::Fences]);
    }
}

#[test]
fn a_later_holding_with_an_earlier_fence_is_found() {
    let lines = [
        "100 a.0 ask a1 n lock",
        "101 b.0 ask b1 n lock",
        "120 a.0 granted a1 8",
        "121 a.0 held a1 122",
        "130 a.0 held a1 131",
        "140 a.0 ended a1 released",
        "150 b.0 granted b1 7",
        "151 b.0 held b1 152",
        "160 b.0 held b1 161",
        "170 b.0 ended b1 released",
    ];
    breaks(&lines, &[Rule::Fences]);
}

/// `b` asks when `a` stands in the queue, and is granted before it.
const OVERTAKING: [&str; 7] = [
    "10000 a.0 ask a1 n enqueue",
    "10010 a.0 queued a1",
    "10020 b.0 ask b1 n try_lock",
    "10030 b.0 granted b1 5",
    "10040 b.0 ended b1 released",
    "10050 a.0 granted a1 6",
    "10060 a.0 ended a1 released",
];

#[test]
fn one_who_asks_later_and_is_granted_earlier_is_found() {
    breaks(&OVERTAKING, &[Rule::Order]);
    let never_granted = [&OVERTAKING[..5], &["10050 a.0 leave a1", "10060 a.0 ended a1 none"]].concat();
    breaks(&never_granted, &[Rule::Order]);
    let gone_by_then = [&OVERTAKING[..5], &["10025 a.0 leave a1", "10060 a.0 ended a1 none"]].concat();
    breaks(&gone_by_then, &[]);
    let died = [&OVERTAKING[..5], &["10050 a.0 begin 1 kill", "10051 - end 1"]].concat();
    breaks(&died, &[Rule::Order]);
}

#[test]
fn one_who_was_overtaken_is_spared_if_it_was_silent_or_redis_forgot() {
    let with = |fault: &[&str]| found(&[&OVERTAKING[..], fault].concat(), Rule::Order);
    let excuses = [
        ["9000 a.0 begin 1 stop", "9500 - end 1"],
        ["10015 - begin 1 server-emptied", "10016 - end 1"],
        ["10015 a.0 begin 1 link-close", "10016 - end 1"],
        ["9000 - begin 1 server-stopped", "9600 - end 1"],
    ];
    for excuse in &excuses[..2] {
        let finding = with(excuse);
        assert_eq!((finding.spared, finding.broken.len()), (1, 0), "{excuse:?}");
    }
    // What is left of a link's trouble at the time of the grant is too short to cost a place.
    assert_eq!(with(&excuses[2]).broken.len(), 1);
    assert_eq!(with(&excuses[3]).spared, 1);
    for innocent in [
        ["9900 a.0 begin 1 doze", "9950 - end 1"],
        ["9000 b.0 begin 1 stop", "9900 - end 1"],
        ["10015 - begin 1 server-killed", "10018 - end 1"],
    ] {
        assert_eq!(with(&innocent).broken.len(), 1, "{innocent:?}");
    }
}

#[test]
fn a_waiter_whom_nobody_serves_while_all_is_well_is_found() {
    let lines = |granted: u64| {
        [
            "10000 a.0 ask a1 n enqueue".to_owned(),
            "10010 a.0 queued a1".to_owned(),
            format!("{granted} a.0 granted a1 6"),
            format!("{} a.0 ended a1 released", granted + 1),
        ]
    };
    let broken = |granted: u64, more: &[&str]| {
        let lines = lines(granted);
        let lines: Vec<&str> = lines.iter().map(String::as_str).chain(more.iter().copied()).collect();
        found(&lines, Rule::WakeUp).broken.len()
    };
    assert_eq!(broken(10_000 + CRASH, &[]), 0);
    assert_eq!(broken(10_001 + CRASH, &[]), 1);
    // While something is wrong, and for as long again, nobody is to blame.
    assert_eq!(broken(10_001 + CRASH, &["11000 b.0 begin 1 stop", "11500 - end 1"]), 0);
    assert_eq!(broken(11_501 + CRASH, &["11000 b.0 begin 1 stop", "11500 - end 1"]), 1);
    assert_eq!(broken(10_001 + CRASH, &["11000 - begin 1 script-flush", "11500 - end 1"]), 1);
}

#[test]
fn a_crash_that_costs_more_than_it_may_is_found() {
    let lines = |next: u64| {
        [
            "10000 a.0 ask a1 n lock".to_owned(),
            "10010 a.0 granted a1 6".to_owned(),
            "10020 b.0 ask b1 n enqueue".to_owned(),
            "10030 b.0 queued b1".to_owned(),
            "10100 a.0 begin 1 kill".to_owned(),
            "10110 - end 1".to_owned(),
            format!("{next} b.0 granted b1 7"),
            format!("{} b.0 ended b1 released", next + 1),
            "30000 - key k 1".to_owned(),
        ]
    };
    let crash = |next: u64, more: &[&str]| {
        let lines = lines(next);
        let lines: Vec<&str> = lines.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let finding = found(&lines, Rule::Crash);
        (finding.judged, finding.broken.len())
    };
    assert_eq!(crash(10_100 + CRASH, &[]), (1, 0));
    assert_eq!(crash(10_101 + CRASH, &[]), (1, 1));
    assert_eq!(crash(10_101 + CRASH, &["11000 b.0 begin 2 stop", "11500 - end 2"]), (0, 0));
}

#[test]
fn a_lost_lock_that_is_held_again_is_found() {
    let mut lines = CLEAN.to_vec();
    lines.insert(16, "205 b.0 held b1 206");
    breaks(&lines, &[Rule::Loss]);
}

#[test]
fn a_call_that_never_ends_is_found_unless_its_process_was_killed() {
    let stuck = ["100 a.0 ask a1 n lock"];
    breaks(&stuck, &[Rule::End]);
    breaks(&[stuck[0], "200 a.0 begin 1 kill", "201 - end 1"], &[]);
}

#[test]
fn a_try_that_takes_longer_than_it_may_is_found_unless_its_process_slept() {
    for (verb, bound) in [("try_lock", 500), ("try_lock_for:800", 1100)] {
        let lines = |took: u64| [format!("1000 a.0 ask a1 n {verb}"), format!("{} a.0 ended a1 none", 1000 + took)];
        let ends = |took: u64, more: &[&str]| {
            let lines = lines(took);
            let lines: Vec<&str> = lines.iter().map(String::as_str).chain(more.iter().copied()).collect();
            found(&lines, Rule::End).broken.len()
        };
        assert_eq!(ends(bound, &[]), 0);
        assert_eq!(ends(bound + 1, &[]), 1);
        assert_eq!(ends(bound + 10, &["1010 a.0 begin 1 stop", "1020 - end 1"]), 0);
        assert_eq!(ends(bound + 10, &["1010 a.0 begin 1 link-refuse", "1020 - end 1"]), 1);
    }
}

#[test]
fn a_late_write_that_the_resource_accepts_is_found() {
    let mut lines = CLEAN.to_vec();
    lines[13] = "195 resource write a1 n 7 accepted";
    breaks(&lines, &[Rule::Resource]);
}

#[test]
fn a_key_that_stays_for_ever_is_found() {
    let mut lines = CLEAN.to_vec();
    lines.push("221 - key fairlock:{n}:q -1");
    breaks(&lines, &[Rule::Keys]);
}
