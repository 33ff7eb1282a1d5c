//! The checker of the soak (`tests/soak`) finds each kind of violation. On no store: the histories
//! are written by hand.

#[path = "../soak/checker.rs"]
mod checker;
#[path = "../soak/history.rs"]
mod history;

use std::time::Duration;

use checker::{Finding, Rule, Timings, check, local_handovers, longest_wait, overlap_spans};
use history::History;

/// These histories use a nanosecond where reality has a millisecond: a lease lasts 2,000 ns.
const TIMINGS: Timings = Timings {
    ttl: Duration::from_nanos(2000),
    check_period: Duration::from_nanos(250),
    command_timeout: Duration::from_nanos(200),
    horizon: Duration::from_nanos(1000),
    slack: Duration::from_nanos(100),
};

/// The longest delay that a crash may cause with these timings.
const CRASH: u64 = 2000 + 250 + 200 + 100;

/// Reads lines without the wall time, which the checker does not use.
fn read(lines: &[&str]) -> History {
    let with_time = |line: &&str| format!("{}\n", line.replacen(' ', " 0 ", 1));
    let text: String = lines.iter().map(with_time).collect();
    History::read([text.as_str()]).unwrap()
}

fn found(lines: &[&str], rule: Rule) -> Finding {
    check(&read(lines), &TIMINGS)
        .into_iter()
        .find(|finding| finding.rule == rule)
        .unwrap()
}

/// Asserts that the history violates exactly these rules.
#[track_caller]
fn assert_violates(lines: &[&str], rules: &[Rule]) {
    let findings = check(&read(lines), &TIMINGS);
    let violated: Vec<_> = findings
        .iter()
        .filter(|f| !f.violations.is_empty())
        .map(|f| f.rule)
        .collect();
    assert_eq!(violated, rules, "{findings:#?}");
}

/// Two holders one after the other, without any violation.
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

/// One process has a mutex with one local hand-over again and again while another one waits.
fn line_of_a_while_b_waits(turns: usize) -> Vec<String> {
    let mut lines = vec![
        "100 b.0 ask b1 n enqueue line:1".to_owned(),
        "110 b.0 queued b1".to_owned(),
    ];
    for turn in 0..turns {
        let at = 200 + 10 * turn;
        lines.extend([
            format!("{at} a.0 ask a{turn} n lock line:1"),
            format!("{} a.0 granted a{turn} {}", at + 1, 7 + turn),
            format!("{} a.0 held a{turn} {}", at + 2, at + 3),
            format!("{} a.0 release a{turn}", at + 4),
            format!("{} a.0 ended a{turn} released", at + 5),
        ]);
    }
    lines.push("900 b.0 granted b1 90".to_owned());
    lines.push("910 b.0 ended b1 released".to_owned());
    lines
}

#[test]
fn a_line_has_two_tenures_before_a_waiter_and_no_more() {
    let violates = |turns| {
        let lines = line_of_a_while_b_waits(turns);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        !found(&lines, Rule::Order).violations.is_empty()
    };
    assert!(!violates(4));
    assert!(violates(5));
}

#[test]
fn members_of_one_line_keep_their_order() {
    let lines = [
        "100 a.0 ask a1 n enqueue line:9",
        "110 a.0 queued a1",
        "120 a.0 ask a2 n lock line:9",
        "130 a.0 granted a2 7",
        "140 a.0 granted a1 8",
    ];
    assert_eq!(found(&lines, Rule::Order).violations.len(), 1);
    assert_eq!(local_handovers(&read(&lines)), 1);
    let others = lines.map(|line| line.replace("a.0 ask a2", "b.0 ask a2"));
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_eq!(found(&others, Rule::Order).violations.len(), 0);
}

/// A process locks a name in a row while another one waits: until it must know of that, and later.
fn a_keeps_while_b_waits(last: u64) -> Vec<String> {
    let mut lines = vec![
        "100 b.0 ask b1 n enqueue".to_owned(),
        "110 b.0 queued b1".to_owned(),
    ];
    for (turn, at) in [200, 300, last].into_iter().enumerate() {
        lines.extend([
            format!("{at} a.0 ask a{turn} n lock kept"),
            format!("{} a.0 granted a{turn} {}", at + 1, 7 + turn),
            format!("{} a.0 held a{turn} {}", at + 2, at + 3),
            format!("{} a.0 release a{turn}", at + 4),
            format!("{} a.0 ended a{turn} released", at + 5),
        ]);
    }
    lines.push("2900 b.0 granted b1 90".to_owned());
    lines.push("2910 b.0 ended b1 released".to_owned());
    lines.push("2911 a.0 turns 2".to_owned());
    lines
}

#[test]
fn keeper_overtakes_a_waiter_until_it_must_know_of_it() {
    let violates = |last| {
        let lines = a_keeps_while_b_waits(last);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(read(&lines).kept_turns, 2);
        !found(&lines, Rule::Order).violations.is_empty()
    };
    // Two check periods, a timeout and the slack.
    let told = 2 * 250 + 200 + 100;
    assert!(!violates(110 + told));
    assert!(violates(111 + told));
}

/// Two of one process wait for a long time. One comes from another process, and is before one of them.
#[test]
fn waiters_of_a_keeper_share_a_place() {
    let violations = |holder: &str, turns: [&str; 4]| {
        let mut lines = vec![
            format!("100 {holder} ask c1 n lock kept"),
            format!("101 {holder} granted c1 7"),
            "110 a.0 ask a1 n enqueue kept".to_owned(),
            "111 a.0 queued a1".to_owned(),
            "112 a.0 ask a2 n enqueue kept".to_owned(),
            "113 a.0 queued a2".to_owned(),
            format!("2010 {holder} release c1"),
            format!("2011 {holder} ended c1 dropped"),
        ];
        lines.extend(turns.map(str::to_owned));
        lines.extend(["2900 a.0 granted a2 90", "2910 a.0 ended a2 dropped"].map(str::to_owned));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        found(&lines, Rule::Order).violations.len()
    };
    let between = |asked: &'static str| {
        [
            "2020 a.0 granted a1 50",
            "2030 a.0 ended a1 dropped",
            asked,
            "2800 b.0 granted b1 60",
        ]
    };
    // The place was behind the other after the turn, whose release may be a little late.
    let late = 2030 + 200 + 100;
    for (asked, wrong) in [(2000, 0), (late - 1, 0), (late, 1)] {
        let asked: &str = format!("{asked} b.0 ask b1 n lock").leak();
        assert_eq!(violations("c.0", between(asked)), wrong, "{asked}");
    }
    // It was ahead of the other, which is before both. Then a guard of its own process was before it.
    let before_both = [
        "2000 b.0 ask b1 n lock",
        "2020 b.0 granted b1 40",
        "2030 a.0 granted a1 50",
        "2040 a.0 ended a1 dropped",
    ];
    assert_eq!(violations("c.0", before_both), 2);
    assert_eq!(violations("a.0", before_both), 0);
}

#[test]
fn guard_of_a_kept_lock_may_have_a_grant_that_redis_has_lost() {
    let overlap = |kind: &str| {
        let lines = [
            format!("100 a.0 ask a1 n lock {kind}"),
            "110 a.0 granted a1 7".to_owned(),
            "120 a.0 held a1 121".to_owned(),
            "130 a.0 release a1".to_owned(),
            "135 a.0 ended a1 released".to_owned(),
            "140 - begin f1 flushall".to_owned(),
            "150 - end f1".to_owned(),
            format!("200 a.0 ask a2 n lock {kind}"),
            "210 a.0 granted a2 8".to_owned(),
            "211 a.0 held a2 212".to_owned(),
            "215 b.0 ask b1 n lock".to_owned(),
            "220 b.0 granted b1 90".to_owned(),
            "221 b.0 held b1 222".to_owned(),
            "230 a.0 held a2 231".to_owned(),
            "240 b.0 held b1 241".to_owned(),
            "250 a.0 release a2".to_owned(),
            "255 a.0 ended a2 released".to_owned(),
            "260 b.0 release b1".to_owned(),
            "265 b.0 ended b1 released".to_owned(),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        found(&lines, Rule::Exclusion).violations.len()
    };
    assert_eq!([overlap("kept"), overlap("1/1")], [0, 1]);
}

#[test]
fn a_clean_history_passes_and_every_rule_is_checked() {
    assert_violates(&CLEAN, &[]);
    for rule in [
        Rule::Exclusion,
        Rule::Fences,
        Rule::WakeUp,
        Rule::Loss,
        Rule::End,
        Rule::Resource,
        Rule::Keys,
    ] {
        assert!(found(&CLEAN, rule).checked > 0, "{rule:?}");
    }
    assert_eq!(
        longest_wait(&read(&CLEAN), &TIMINGS),
        Duration::from_nanos(45)
    );
}

#[test]
fn only_a_line_cut_off_by_a_kill_is_ignored() {
    let history = History::read(["100 0 a.0 ask a1 n lock\n130 0 a.0 gran"]).unwrap();
    assert_eq!(history.attempts.len(), 1);
    let wrong = [
        "1 0 a.0 granted a1 5",
        "1 0 - end 3",
        "1 a.0 ask a1 n",
        "1 0 - what",
        "x 0 a.0 ask a1 n lock",
        "1 0 a.0 ask a1 n lock 2",
        "1 0 a.0 ask a1 n lock read 1/3",
        "1 0 a.0 ask a1 n lock\n2 0 a.0 ask a1 n lock",
    ];
    for wrong in wrong {
        History::read([format!("{wrong}\n").as_str()]).unwrap_err();
    }
}

/// Two holders at the same time.
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
    assert_violates(&OVERLAP, &[Rule::Exclusion]);
    assert_eq!(overlap_spans(&read(&OVERLAP)), [(152, 160)]);
    assert_eq!(overlap_spans(&read(&CLEAN)), []);
}

#[test]
fn two_holders_at_once_are_excused_only_around_data_loss() {
    let mut lines = OVERLAP.to_vec();
    lines.extend(["140 - begin 1 flushall", "141 - end 1"]);
    assert_violates(&lines, &[]);
    assert_eq!(found(&lines, Rule::Exclusion).excused, 1);
    let late = [&OVERLAP[..], &["300 - begin 1 flushall", "301 - end 1"]].concat();
    assert_violates(&late, &[Rule::Exclusion]);
    let harmless = [
        &OVERLAP[..],
        &["140 - begin 1 server-killed", "141 - end 1"],
    ]
    .concat();
    assert_violates(&harmless, &[Rule::Exclusion]);
}

/// Redis forgets the tenure of `a`, grants the lock to `b`, and then `a` hands over within itself.
#[test]
fn a_local_handover_of_a_forgotten_tenure_is_excused() {
    let handed_over = |asked: u64, fence: u64| {
        let ask = format!("{asked} a.0 ask a2 n lock line:4");
        let granted = format!("160 a.0 granted a2 {fence}");
        let lines = [
            "100 a.0 ask a1 n lock line:4",
            "110 a.0 granted a1 7",
            "120 - begin 1 flushall",
            "121 - end 1",
            "130 b.0 ask b1 n lock line:4",
            &ask,
            "140 b.0 granted b1 90",
            "141 b.0 held b1 142",
            "150 a.0 ended a1 released",
            &granted,
            "161 a.0 held a2 162",
            "170 a.0 held a2 171",
            "180 b.0 held b1 181",
        ];
        [Rule::Exclusion, Rule::Fences].map(|rule| {
            let finding = found(&lines, rule);
            (finding.excused, finding.violations.len())
        })
    };
    assert_eq!(handed_over(135, 8), [(1, 0), (0, 0)]);
    assert_eq!(handed_over(135, 11), [(1, 0), (0, 0)]);
    assert_eq!(handed_over(145, 8), [(1, 0), (1, 0)]);
    // These are grants of their own, and came after the loss.
    assert_eq!(handed_over(135, 12), [(0, 1), (0, 0)]);
    assert_eq!(handed_over(145, 12), [(0, 1), (0, 1)]);
}

#[test]
fn a_single_observation_within_anothers_hold_is_found() {
    let mut lines = OVERLAP.to_vec();
    lines.remove(7);
    assert_violates(&lines, &[Rule::Exclusion]);
}

#[test]
fn a_fence_not_rising_over_data_loss_is_found() {
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
        assert_violates(&lines, &[Rule::Fences]);
    }
}

#[test]
fn a_later_hold_with_a_smaller_fence_is_found() {
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
    assert_violates(&lines, &[Rule::Fences]);
}

/// `b` asks while `a` is queued, and is granted before it.
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
fn an_overtaking_caller_is_found() {
    assert_violates(&OVERTAKING, &[Rule::Order]);
    let never_granted = [
        &OVERTAKING[..5],
        &["10050 a.0 cancel a1", "10060 a.0 ended a1 none"],
    ]
    .concat();
    assert_violates(&never_granted, &[Rule::Order]);
    let gone_by_then = [
        &OVERTAKING[..5],
        &["10025 a.0 cancel a1", "10060 a.0 ended a1 none"],
    ]
    .concat();
    assert_violates(&gone_by_then, &[]);
    let died = [
        &OVERTAKING[..5],
        &["10050 a.0 begin 1 kill", "10051 - end 1"],
    ]
    .concat();
    assert_violates(&died, &[Rule::Order]);
}

#[test]
fn overtaking_a_silent_or_forgotten_waiter_is_excused() {
    let with = |fault: &[&str]| found(&[&OVERTAKING[..], fault].concat(), Rule::Order);
    let excuses = [
        ["9000 a.0 begin 1 stop", "9500 - end 1"],
        ["10015 - begin 1 server-emptied", "10016 - end 1"],
        ["10015 a.0 begin 1 link-close", "10016 - end 1"],
        ["9000 - begin 1 server-stopped", "9600 - end 1"],
    ];
    for excuse in &excuses[..2] {
        let finding = with(excuse);
        assert_eq!(
            (finding.excused, finding.violations.len()),
            (1, 0),
            "{excuse:?}"
        );
    }
    // At the time of the grant, the link's fault is too short to cost a place.
    assert_eq!(with(&excuses[2]).violations.len(), 1);
    assert_eq!(with(&excuses[3]).excused, 1);
    for no_excuse in [
        ["9900 a.0 begin 1 brief-stop", "9950 - end 1"],
        ["9000 b.0 begin 1 stop", "9900 - end 1"],
        ["10015 - begin 1 server-killed", "10018 - end 1"],
    ] {
        assert_eq!(with(&no_excuse).violations.len(), 1, "{no_excuse:?}");
    }
}

#[test]
fn a_waiter_starved_without_any_fault_is_found() {
    let lines = |granted: u64| {
        [
            "10000 a.0 ask a1 n enqueue".to_owned(),
            "10010 a.0 queued a1".to_owned(),
            format!("{granted} a.0 granted a1 6"),
            format!("{} a.0 ended a1 released", granted + 1),
        ]
    };
    let violations = |granted: u64, more: &[&str]| {
        let lines = lines(granted);
        let lines: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        found(&lines, Rule::WakeUp).violations.len()
    };
    assert_eq!(violations(10_000 + CRASH, &[]), 0);
    assert_eq!(violations(10_001 + CRASH, &[]), 1);
    // A fault excuses the wait while it is active, and the bound starts again after it.
    assert_eq!(
        violations(10_001 + CRASH, &["11000 b.0 begin 1 stop", "11500 - end 1"]),
        0
    );
    assert_eq!(
        violations(11_501 + CRASH, &["11000 b.0 begin 1 stop", "11500 - end 1"]),
        1
    );
    assert_eq!(
        violations(
            10_001 + CRASH,
            &["11000 - begin 1 script-flush", "11500 - end 1"]
        ),
        1
    );
}

#[test]
fn a_crash_that_costs_too_much_time_is_found() {
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
        let lines: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        let finding = found(&lines, Rule::Crash);
        (finding.checked, finding.violations.len())
    };
    assert_eq!(crash(10_100 + CRASH, &[]), (1, 0));
    assert_eq!(crash(10_101 + CRASH, &[]), (1, 1));
    assert_eq!(
        crash(10_101 + CRASH, &["11000 b.0 begin 2 stop", "11500 - end 2"]),
        (0, 0)
    );
}

/// The history with one line replaced.
fn replaced<'a>(lines: &[&'a str], old: &str, new: &'a str) -> Vec<&'a str> {
    let mut lines = lines.to_vec();
    let at = lines
        .iter()
        .position(|line| *line == old)
        .expect("a line of the history");
    lines[at] = new;
    lines
}

/// Two holders of a semaphore with three permits: one has two, the other has one.
const SHARING: [&str; 10] = [
    "100 a.0 ask a1 n lock 2/3",
    "120 a.0 granted a1 7",
    "121 a.0 held a1 122",
    "130 b.0 ask b1 n lock 1/3",
    "150 b.0 granted b1 8",
    "151 b.0 held b1 152",
    "160 a.0 held a1 161",
    "170 b.0 held b1 171",
    "180 a.0 ended a1 released",
    "190 b.0 ended b1 released",
];

#[test]
fn holding_more_permits_than_exist_is_found() {
    assert_violates(&SHARING, &[]);
    let heavy = replaced(
        &SHARING,
        "130 b.0 ask b1 n lock 1/3",
        "130 b.0 ask b1 n lock 2/3",
    );
    assert_violates(&heavy, &[Rule::Exclusion]);
    // No two of these holders exceed the capacity, but all three do.
    let third = |from: u64, to: u64| {
        vec![
            "132 c.0 ask c1 n lock 1/3".to_owned(),
            format!("{} c.0 granted c1 9", from - 1),
            format!("{from} c.0 held c1 {from}"),
            format!("{to} c.0 held c1 {to}"),
            "195 c.0 ended c1 released".to_owned(),
        ]
    };
    let with = |from, to| {
        let third = third(from, to);
        found(
            &SHARING
                .iter()
                .copied()
                .chain(third.iter().map(String::as_str))
                .collect::<Vec<_>>(),
            Rule::Exclusion,
        )
    };
    assert_eq!(with(155, 158).violations.len(), 1);
    assert_eq!(with(162, 168).violations.len(), 0);
    // A single observation: only the times before and after it are known.
    assert_eq!(with(158, 158).violations.len(), 1);
    let mut lines = heavy;
    lines.extend(["140 - begin 1 flushall", "141 - end 1"]);
    assert_eq!(found(&lines, Rule::Exclusion).excused, 1);
    assert_violates(&lines, &[]);
}

/// A writer downgrades, and another reader is granted. Both readers have the writer's fence.
const READING: [&str; 14] = [
    "100 a.0 ask a1 n lock write",
    "120 a.0 granted a1 7",
    "121 a.0 held a1 122",
    "130 b.0 ask b1 n lock read",
    "140 a.0 downgrade a1",
    "145 a.0 downgraded a1",
    "150 b.0 granted b1 7",
    "151 b.0 held b1 152",
    "155 a.0 held a1 156",
    "160 resource write b1 n 7 accepted",
    "161 resource write a1 n 7 accepted",
    "170 b.0 held b1 171",
    "180 a.0 ended a1 released",
    "190 b.0 ended b1 released",
];

#[test]
fn a_writer_beside_others_is_found_unless_it_downgraded() {
    assert_violates(&READING, &[]);
    let still_writes: Vec<_> = READING
        .iter()
        .copied()
        .filter(|line| !line.contains("downgrade"))
        .collect();
    assert_violates(&still_writes, &[Rule::Exclusion]);
    // It downgraded only after the other reader was granted.
    let late = replaced(&READING, "140 a.0 downgrade a1", "153 a.0 downgrade a1");
    assert_violates(
        &replaced(&late, "145 a.0 downgraded a1", "154 a.0 downgraded a1"),
        &[Rule::Exclusion],
    );
    let both_write = replaced(
        &READING,
        "130 b.0 ask b1 n lock read",
        "130 b.0 ask b1 n lock write",
    );
    assert_violates(
        &replaced(&both_write, "150 b.0 granted b1 7", "150 b.0 granted b1 8"),
        &[Rule::Exclusion],
    );
}

#[test]
fn concurrent_readers_with_different_fences_are_found() {
    let other = replaced(&READING, "150 b.0 granted b1 7", "150 b.0 granted b1 8");
    assert_violates(&other, &[Rule::Fences]);
    let late = replaced(&other, "155 a.0 held a1 156", "149 a.0 held a1 149");
    assert_violates(&late, &[]);
    let forgot = [&other[..], &["135 - begin 1 flushall", "136 - end 1"]].concat();
    assert_violates(&forgot, &[]);
    assert_eq!(found(&forgot, Rule::Fences).excused, 1);
}

#[test]
fn permit_fences_must_rise_but_reader_fences_may_stay() {
    let after = |first: &str, second: &str, fence: u64| {
        let (a, b) = (
            format!("100 a.0 ask a1 n lock {first}"),
            format!("220 b.0 ask b1 n lock {second}"),
        );
        let granted = format!("230 b.0 granted b1 {fence}");
        let lines = [
            &a,
            "120 a.0 granted a1 7",
            "180 a.0 ended a1 released",
            &b,
            &granted,
            "240 b.0 ended b1 released",
        ];
        !found(&lines, Rule::Fences).violations.is_empty()
    };
    for (first, second) in [("1/3", "1/3"), ("write", "write"), ("read", "write")] {
        assert!(
            after(first, second, 7) && after(first, second, 6) && !after(first, second, 8),
            "{first} {second}"
        );
    }
    for first in ["write", "read"] {
        assert!(
            after(first, "read", 6) && !after(first, "read", 7) && !after(first, "read", 8),
            "{first}"
        );
    }
}

#[test]
fn equal_fences_for_concurrent_callers_are_found_except_for_readers() {
    for (demand, violates) in [("1/3", true), ("write", true), ("read", false)] {
        let lines = [("a", 100, 120), ("b", 101, 121)].map(|(who, asked, granted)| {
            [
                format!("{asked} {who}.0 ask {who}1 n lock {demand}"),
                format!("{granted} {who}.0 granted {who}1 7"),
                format!("{} {who}.0 ended {who}1 released", granted + 10),
            ]
        });
        let lines: Vec<&str> = lines.iter().flatten().map(String::as_str).collect();
        assert_violates(&lines, if violates { &[Rule::Fences] } else { &[] });
    }
}

#[test]
fn a_smaller_fence_after_an_excluding_hold_is_found() {
    for (first, second, violates) in [
        ("2/3", "2/3", true),
        // Both may have held at the same time, and one checked `is_held` late.
        ("2/3", "1/3", false),
        ("write", "read", true),
        ("read", "write", true),
        ("read", "read", false),
    ] {
        let (a, b) = (
            format!("100 a.0 ask a1 n lock {first}"),
            format!("101 b.0 ask b1 n lock {second}"),
        );
        let lines = [
            &a,
            &b,
            "120 a.0 granted a1 8",
            "121 a.0 held a1 122",
            "130 a.0 held a1 131",
            "140 a.0 ended a1 released",
            "150 b.0 granted b1 7",
            "151 b.0 held b1 152",
            "160 b.0 held b1 161",
            "170 b.0 ended b1 released",
        ];
        assert_violates(&lines, if violates { &[Rule::Fences] } else { &[] });
        // `b` may have been a writer before `a` was granted, and checked `is_held` only as a
        // reader.
        if second == "write" {
            let lines = [
                &lines[..8],
                &["155 b.0 downgrade b1", "156 b.0 downgraded b1"],
                &lines[8..],
            ]
            .concat();
            assert_violates(
                &lines,
                if first == "read" {
                    &[]
                } else {
                    &[Rule::Fences]
                },
            );
        }
    }
}

#[test]
fn a_light_request_that_overtakes_a_heavy_one_is_found() {
    let overtaking = |a: &str, b: &str, fences: [u64; 2]| {
        let asks = [
            format!("10000 a.0 ask a1 n lock {a}"),
            format!("10020 b.0 ask b1 n try_lock {b}"),
            format!("10030 b.0 granted b1 {}", fences[1]),
            format!("10050 a.0 granted a1 {}", fences[0]),
        ];
        let waiting = "10010 a.0 waiting a1 10009";
        let ends = ["10040 b.0 ended b1 released", "10060 a.0 ended a1 released"];
        let lines = [
            &asks[0], waiting, &asks[1], &asks[2], ends[0], &asks[3], ends[1],
        ];
        found(&lines, Rule::Order).violations.len()
    };
    for (a, b) in [
        ("3/3", "1/3"),
        ("1/3", "1/3"),
        ("write", "read"),
        ("write", "write"),
        ("read", "write"),
    ] {
        assert_eq!(
            (overtaking(a, b, [6, 5]), overtaking(a, b, [5, 6])),
            (1, 0),
            "{a} {b}"
        );
    }
    // A reader that is granted before a writer has the fence of an earlier writer.
    assert_eq!(
        (
            overtaking("read", "write", [5, 5]),
            overtaking("write", "read", [6, 5])
        ),
        (1, 1)
    );
    assert_eq!(
        (
            overtaking("read", "read", [5, 5]),
            overtaking("read", "read", [6, 5])
        ),
        (0, 1)
    );
}

/// The grant before `b`'s reached no thread of `a`, and lapsed. Nobody overtook it.
#[test]
fn a_second_grant_is_excused_if_the_first_may_have_lapsed_unseen() {
    let second = |a: &str, b: &str, stopped: u64| {
        let lines = [
            format!("10000 a.0 ask a1 n lock {a}"),
            "10010 a.0 waiting a1 10009".to_owned(),
            "10011 a.0 begin 1 stop".to_owned(),
            format!("10020 b.0 ask b1 n lock {b}"),
            "10030 b.0 granted b1 6".to_owned(),
            "10040 b.0 ended b1 released".to_owned(),
            format!("{} - end 1", 10_011 + stopped),
            "12500 a.0 granted a1 7".to_owned(),
            "12510 a.0 ended a1 released".to_owned(),
        ];
        let finding = found(&lines.each_ref().map(String::as_str), Rule::Order);
        (finding.excused, finding.violations.len())
    };
    assert_eq!(second("read", "read", 2200), (1, 0));
    assert_eq!(second("1/3", "2/3", 2200), (1, 0));
    // Such a grant would have kept `b` out.
    assert_eq!(second("2/3", "2/3", 2200), (0, 1));
    assert_eq!(second("write", "read", 2200), (0, 1));
    // Within half a lease, its process learns of the grant.
    assert_eq!(second("read", "read", 600), (0, 1));
}

#[test]
fn an_overtaken_waiter_that_was_never_granted_is_found() {
    let never = |weight: &str, seen: u64, verb: &str| {
        let ask = format!("10000 a.0 ask a1 n {verb} {weight}");
        let waiting = format!("10050 a.0 waiting a1 {seen}");
        let lines = [
            &ask,
            "10010 a.0 waiting a1 10009",
            "10020 b.0 ask b1 n try_lock 1/3",
            "10030 b.0 granted b1 5",
            "10040 b.0 ended b1 released",
            &waiting,
            "10900 a.0 ended a1 none",
        ];
        found(&lines, Rule::Order).violations.len()
    };
    assert_eq!(never("1/3", 10_031, "try_lock_for:500"), 1);
    // It may have been granted beside `b`, and cancelled without learning of it.
    assert_eq!(never("1/3", 10_029, "try_lock_for:500"), 0);
    assert_eq!(never("3/3", 10_029, "try_lock_for:500"), 1);
    // It may have left the queue before that.
    assert_eq!(never("3/3", 10_029, "try_lock_for:30"), 0);
}

#[test]
fn a_starved_permit_waiter_is_found_unless_heavier_waiters_precede() {
    let violations = |holder: &str, waiter: &str, more: &[&str]| {
        let asks = [
            format!("9000 b.0 ask b1 n lock {holder}"),
            format!("10000 a.0 ask a1 n lock {waiter}"),
        ];
        let granted = format!("{} a.0 granted a1 6", 10_001 + CRASH);
        let lines = [
            &asks[0],
            "9010 b.0 granted b1 5",
            &asks[1],
            &granted,
            "19000 b.0 ended b1 released",
        ];
        found(
            &lines
                .into_iter()
                .chain(more.iter().copied())
                .collect::<Vec<_>>(),
            Rule::WakeUp,
        )
        .violations
        .len()
    };
    assert_eq!(
        (violations("1/3", "2/3", &[]), violations("2/3", "2/3", &[])),
        (1, 0)
    );
    assert_eq!(
        (
            violations("read", "read", &[]),
            violations("write", "read", &[]),
            violations("read", "write", &[])
        ),
        (1, 0, 0)
    );
    assert_eq!(
        violations(
            "1/3",
            "2/3",
            &["10500 c.0 ask c1 n lock 3/3", "19500 c.0 ended c1 none"]
        ),
        0
    );
    assert_eq!(
        violations(
            "read",
            "read",
            &["10500 c.0 ask c1 n lock write", "19500 c.0 ended c1 none"]
        ),
        0
    );
    // After the downgrade it is a reader, and other readers may hold too.
    let downgraded = |at: u64| {
        let lines = [
            format!("{at} b.0 downgrade b1"),
            format!("{} b.0 downgraded b1", at + 1),
        ];
        violations("write", "read", &lines.each_ref().map(String::as_str))
    };
    assert_eq!((downgraded(9500), downgraded(10_500)), (1, 0));
}

#[test]
fn a_costly_crash_among_several_holders_is_found() {
    let lines = |other: &str, ends: u64, next: u64| {
        [
            "10000 a.0 ask a1 n lock 2/3".to_owned(),
            "10010 a.0 granted a1 6".to_owned(),
            format!("10000 c.0 ask c1 n lock {other}/3"),
            "10011 c.0 granted c1 7".to_owned(),
            "10020 b.0 ask b1 n lock 2/3".to_owned(),
            "10100 a.0 begin 1 kill".to_owned(),
            "10110 - end 1".to_owned(),
            format!("{ends} c.0 ended c1 released"),
            format!("{next} b.0 granted b1 8"),
            format!("{} b.0 ended b1 released", next + 1),
            "30000 - key k 1".to_owned(),
        ]
    };
    let crash = |other: &str, ends: u64, next: u64| {
        let lines = lines(other, ends, next);
        let finding = found(&lines.each_ref().map(String::as_str), Rule::Crash);
        (finding.checked, finding.violations.len())
    };
    assert_eq!(crash("1", 20_000, 10_100 + CRASH), (1, 0));
    assert_eq!(crash("1", 20_000, 10_101 + CRASH), (1, 1));
    // There are enough permits only when the other holder has released.
    assert_eq!(crash("2", 11_000, 11_000 + CRASH), (1, 0));
    assert_eq!(crash("2", 11_000, 11_001 + CRASH), (1, 1));
}

#[test]
fn each_of_several_names_may_be_held_since_the_request() {
    let waits = |verb: &str| {
        let ask = format!("9500 b.0 ask b1+n n {verb}");
        let granted = format!("{} a.0 granted a1 6", 10_001 + CRASH);
        let lines = [
            &ask,
            "10000 a.0 ask a1 n lock",
            &granted,
            "19000 b.0 ended b1+n none",
        ];
        found(&lines, Rule::WakeUp).violations.len()
    };
    assert_eq!(
        (
            waits("lock_all"),
            waits("try_lock_all_for:5"),
            waits("try_lock_for:5")
        ),
        (0, 0, 1)
    );
}

#[test]
fn a_slow_downgrade_is_found_unless_its_process_was_paused() {
    let ends = |at: u64, how: &str, more: &[&str]| {
        let over = format!("{at} a.0 {how}");
        let lines = [
            "100 a.0 ask a1 n lock write",
            "120 a.0 granted a1 7",
            "1000 a.0 downgrade a1",
            &over,
        ];
        let rest = ["3000 a.0 release a1", "3001 a.0 ended a1 released"];
        let rest = if how.starts_with("ended") {
            &rest[..0]
        } else {
            &rest[..]
        };
        found(&[&lines[..], rest, more].concat(), Rule::End)
            .violations
            .len()
    };
    for how in ["downgraded a1", "ended a1 lost:Taken"] {
        assert_eq!(
            (ends(1300, how, &[]), ends(1301, how, &[])),
            (0, 1),
            "{how}"
        );
        assert_eq!(
            ends(1310, how, &["1010 a.0 begin 1 stop", "1020 - end 1"]),
            0,
            "{how}"
        );
    }
}

#[test]
fn a_read_accepted_with_an_outdated_fence_is_found() {
    let late = [
        &READING[..],
        &[
            "200 resource write c1 n 8 accepted",
            "201 resource write b1 n 7 accepted",
        ],
    ]
    .concat();
    assert_violates(&late, &[Rule::Resource]);
    let refused = [
        &READING[..],
        &[
            "200 resource write c1 n 8 accepted",
            "201 resource write b1 n 7 refused",
        ],
    ]
    .concat();
    assert_violates(&refused, &[]);
}

#[test]
fn a_lost_lock_that_is_held_again_is_found() {
    let mut lines = CLEAN.to_vec();
    lines.insert(16, "205 b.0 held b1 206");
    assert_violates(&lines, &[Rule::Loss]);
}

#[test]
fn an_endless_call_is_found_unless_its_process_was_killed() {
    let stuck = ["100 a.0 ask a1 n lock"];
    assert_violates(&stuck, &[Rule::End]);
    assert_violates(&[stuck[0], "200 a.0 begin 1 kill", "201 - end 1"], &[]);
}

#[test]
fn a_slow_try_is_found_unless_its_process_was_paused() {
    for (verb, bound) in [
        ("try_lock", 500),
        ("try_lock_for:800", 1100),
        ("try_lock_all", 700),
        ("try_lock_all_for:800", 1300),
    ] {
        let lines = |took: u64| {
            [
                format!("1000 a.0 ask a1 n {verb}"),
                format!("{} a.0 ended a1 none", 1000 + took),
            ]
        };
        let ends = |took: u64, more: &[&str]| {
            let lines = lines(took);
            let lines: Vec<&str> = lines
                .iter()
                .map(String::as_str)
                .chain(more.iter().copied())
                .collect();
            found(&lines, Rule::End).violations.len()
        };
        assert_eq!(ends(bound, &[]), 0);
        assert_eq!(ends(bound + 1, &[]), 1);
        assert_eq!(
            ends(bound + 10, &["1010 a.0 begin 1 stop", "1020 - end 1"]),
            0
        );
        assert_eq!(
            ends(
                bound + 10,
                &["1010 a.0 begin 1 link-refuse", "1020 - end 1"]
            ),
            1
        );
    }
}

#[test]
fn a_late_write_accepted_by_the_resource_is_found() {
    let mut lines = CLEAN.to_vec();
    lines[13] = "195 resource write a1 n 7 accepted";
    assert_violates(&lines, &[Rule::Resource]);
}

#[test]
fn a_key_without_an_expiry_is_found() {
    let mut lines = CLEAN.to_vec();
    lines.push("221 - key fairlock:{n}:q -1");
    assert_violates(&lines, &[Rule::Keys]);
}
