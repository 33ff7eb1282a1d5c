//! The Lua sources: which script serves a verb for a family, and the parts that scripts include.

use std::sync::LazyLock;

use Family::{Mutex, Permit, Quorum};
use VerbName::{Acquire, Inspect, Lookup, Pass, Release, Renew, RenewMany, Sync, Vacate};

use super::Family;

/// How many scripts there are.
pub(crate) const SCRIPTS: usize = 19;

/// Family × verb → script. A script's number is its row. A single command looks up the tokens of a
/// mutex. A quorum has no queue, and nothing is deleted there, so it has no scripts for these.
const TABLE: [(Family, VerbName, &str); SCRIPTS] = [
    (Mutex, Acquire, include_str!("mutex_acquire.lua")),
    (Mutex, Release, include_str!("mutex_release.lua")),
    (Mutex, Renew, include_str!("mutex_renew.lua")),
    (Mutex, RenewMany, include_str!("mutex_renew_many.lua")),
    (Mutex, Pass, include_str!("mutex_pass.lua")),
    (Mutex, Sync, include_str!("mutex_sync.lua")),
    (Mutex, Inspect, include_str!("mutex_inspect.lua")),
    (Mutex, Vacate, include_str!("mutex_vacate.lua")),
    (Permit, Acquire, include_str!("permit_acquire.lua")),
    (Permit, Release, include_str!("permit_release.lua")),
    (Permit, Renew, include_str!("permit_renew.lua")),
    (Permit, Sync, include_str!("permit_sync.lua")),
    (Permit, Inspect, include_str!("permit_inspect.lua")),
    (Permit, Vacate, include_str!("permit_vacate.lua")),
    (Permit, Lookup, include_str!("permit_lookup.lua")),
    (Quorum, Acquire, include_str!("quorum_acquire.lua")),
    (Quorum, Release, include_str!("quorum_release.lua")),
    (Quorum, Renew, include_str!("quorum_renew.lua")),
    (Quorum, Inspect, include_str!("quorum_inspect.lua")),
];

/// The name of a verb of a [`Call`](super::Call), in the table, or of a script for several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VerbName {
    Acquire,
    Release,
    Renew,
    RenewMany,
    Pass,
    Sync,
    Inspect,
    Vacate,
    Lookup,
}

/// A script with all its parts, and the digest by which EVALSHA names it.
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

/// The number of the script that serves this verb, if it has one.
pub(super) fn script_id(family: Family, verb: VerbName) -> Option<usize> {
    TABLE
        .iter()
        .position(|(of_family, of_verb, _)| (*of_family, *of_verb) == (family, verb))
}

/// The script of that number.
pub(super) fn script(id: usize) -> &'static Script {
    &ALL_SCRIPTS[id]
}

/// The SHA-1 of a text, as Redis names a script by it, and as `redis.sha1hex` returns it.
pub(crate) fn sha1_hex(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// All scripts, for a store that runs them itself.
#[cfg(feature = "memory")]
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    ALL_SCRIPTS.iter().map(|script| script.source.as_str())
}

/// The beginning of a line that includes a part. The rest of the line is the part's name.
const INCLUDE: &str = "--include ";

/// Pairs of a part's name and the part.
macro_rules! parts {
    ($($file:literal,)*) => {
        [$(($file, include_str!($file)),)*]
    };
}

/// The parts are included as text: a function would cost a script each time that it runs.
const PARTS: [(&str, &str); 40] = parts![
    "mutex_record.lua",
    "mutex_lapse.lua",
    "mutex_ended.lua",
    "mutex_spare.lua",
    "mutex_give_back.lua",
    "mutex_end_of.lua",
    "mutex_promote.lua",
    "mutex_grant.lua",
    "mutex_wanted.lua",
    "mutex_tell.lua",
    "mutex_delete.lua",
    "mutex_write.lua",
    "permit_record.lua",
    "permit_kind.lua",
    "permit_release_alone.lua",
    "permit_cool.lua",
    "permit_holder.lua",
    "permit_reclaim.lua",
    "permit_promote.lua",
    "permit_grant.lua",
    "permit_write.lua",
    "permit_holders.lua",
    "quorum_record.lua",
    "quorum_grant.lua",
    "quorum_write.lua",
    "queue_record.lua",
    "queue_head.lua",
    "queue_alive.lua",
    "queue_check.lua",
    "queue_leave.lua",
    "queue_forget.lua",
    "queue_enter.lua",
    "queue_stamp.lua",
    "queue_remove.lua",
    "queue_delete.lua",
    "queue_inspect.lua",
    "queue_silent.lua",
    "record_clock.lua",
    "record_now_text.lua",
    "record_vacate.lua",
];

/// The rows of the table.
static ALL_SCRIPTS: LazyLock<[Script; SCRIPTS]> = LazyLock::new(|| {
    TABLE.map(|(_, _, verb)| {
        let mut source = String::new();
        expand(verb, &mut source);
        let sha = sha1_hex(&source);
        Script { source, sha }
    })
});

/// Appends a text with the parts that it includes, and those that they include.
fn expand(text: &str, source: &mut String) {
    for line in text.split_inclusive('\n') {
        match line.split_once(INCLUDE) {
            Some((indent, name)) => {
                source.push_str(indent);
                expand(part(name.trim_end()), source);
            }
            None => source.push_str(line),
        }
    }
}

fn part(name: &str) -> &'static str {
    let found = PARTS.iter().find(|(file, _)| *file == name);
    found.expect("a script includes parts of the list").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_needs_one_has_one_script() {
        for family in [Mutex, Permit, Quorum] {
            for verb in [
                Acquire, Release, Renew, RenewMany, Pass, Sync, Inspect, Vacate, Lookup,
            ] {
                let is_its = |row: &&(Family, VerbName, &str)| (row.0, row.1) == (family, verb);
                let scripts = TABLE.iter().filter(is_its).count();
                let has_none = (family, verb) == (Mutex, Lookup)
                    || family != Mutex && matches!(verb, RenewMany | Pass)
                    || family == Quorum && matches!(verb, Sync | Vacate | Lookup);
                let expected = usize::from(!has_none);
                assert_eq!(scripts, expected, "{family:?} {verb:?}");
            }
        }
    }

    #[test]
    fn scripts_hold_the_text_of_all_their_parts() {
        for (script, (family, verb, _)) in ALL_SCRIPTS.iter().zip(TABLE) {
            assert!(!script.source.contains(INCLUDE), "{family:?} {verb:?}");
        }
        for (file, _) in PARTS {
            let line = format!("{INCLUDE}{file}\n");
            let mut texts = TABLE
                .iter()
                .map(|row| row.2)
                .chain(PARTS.map(|part| part.1));
            assert!(
                texts.any(|text| text.contains(&line)),
                "nothing has {line:?}"
            );
        }
    }
}
