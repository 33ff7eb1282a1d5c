//! Names to keys and back, and the patterns of `list`.

use super::tape::Tape;
use crate::config::{Config, Settings};
use crate::glob::Glob;
use crate::key::{Key, MAX_NAME, scan_pattern};

/// Two names, a prefix, a key that somebody else may have written, and a pattern.
pub fn names(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let wanted = Settings {
        prefix: tape.one_in(2).then(|| tape.text()),
        ..Settings::default()
    };
    let Ok((config, _)) = Config::new(wanted) else {
        return;
    };
    let prefix = &*config.prefix;
    let long = tape.one_in(16);
    let [one, other, pattern, record] = [(); 4].map(|()| tape.text());
    let one = if long { one.repeat(3) } else { one };
    let tail = String::from_utf8_lossy(tape.rest());

    let key = Key::new(prefix, &one);
    assert_eq!(key.is_ok(), (1..=MAX_NAME).contains(&one.len()), "{one:?}");
    reads_only_its_own(prefix, &record);
    reads_only_its_own(prefix, &format!("{prefix}:{{{tail}}}"));
    let Ok(key) = key else { return };
    assert_eq!(
        Key::from_record(prefix, key.record()).as_ref(),
        Some(&key),
        "{one:?}"
    );
    assert_eq!(
        Key::from_record(prefix, key.queue()),
        None,
        "the queue of {one:?} is read as a record"
    );
    assert_eq!(
        hash_tag(key.record()),
        hash_tag(key.queue()),
        "the keys of {one:?} are in two slots"
    );
    let tag = hash_tag(key.record());
    assert!(
        tag.len() < key.record().len() && !tag.is_empty(),
        "{:?} has no hash tag",
        key.record()
    );
    if let Ok(other) = Key::new(prefix, &other) {
        let are_same = one == *other.name;
        let keys = [key.record(), key.queue()];
        let shared = [other.record(), other.queue()]
            .iter()
            .filter(|k| keys.contains(k))
            .count();
        assert_eq!(
            shared,
            if are_same { 2 } else { 0 },
            "{:?} and {:?}",
            key,
            other
        );
        assert_eq!(
            tag == hash_tag(other.record()),
            are_same,
            "{:?} and {:?}",
            key,
            other
        );
    }
    let glob = Glob::new(&pattern);
    let asked = scan_pattern(prefix, &glob);
    if glob.matches(&one) {
        assert!(
            redis_matches(asked.as_bytes(), key.record().as_bytes()),
            "{asked:?} passes over {key:?}"
        );
    }
    assert!(
        Glob::new("*").matches(&one) && literal(&one).matches(&one),
        "{one:?}"
    );
    if one != other {
        assert!(!literal(&one).matches(&other), "{one:?} {other:?}");
    }
}

fn reads_only_its_own(prefix: &str, record: &str) {
    if let Some(key) = Key::from_record(prefix, record) {
        assert_eq!(key.record(), record);
        assert_eq!(
            Key::new(prefix, &key.name).expect("it was read"),
            key,
            "{record:?}"
        );
    }
}

/// What Redis hashes: the text between the first `{` and the first `}` after it, if there is any.
fn hash_tag(key: &str) -> &str {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn literal(name: &str) -> Glob {
    Glob::new(&name.chars().flat_map(|c| ['\\', c]).collect::<String>())
}

/// Redis's own match, for patterns of stars, escapes and what stands for itself.
fn redis_matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    while from < key.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, from));
                at += 1;
                continue;
            }
            Some(b'?' | b'[') => panic!("not escaped in {:?}", String::from_utf8_lossy(pattern)),
            Some(b'\\') if pattern.get(at + 1) == Some(&key[from]) => {
                (at, from) = (at + 2, from + 1);
                continue;
            }
            Some(byte) if *byte != b'\\' && *byte == key[from] => {
                (at, from) = (at + 1, from + 1);
                continue;
            }
            _ => {}
        }
        let Some((after, taken)) = star else {
            return false;
        };
        star = Some((after, taken + 1));
        (at, from) = (after, taken + 1);
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}
