//! Names to keys and back, and the patterns of `list`.

use super::input::FuzzInput;
use crate::config::{Config, Settings};
use crate::glob::Glob;
use crate::key::{Key, MAX_NAME, scan_pattern};

/// Two names, a prefix, a key that another program may have written, and a pattern.
pub fn names(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let wanted = Settings {
        prefix: input.one_in(2).then(|| input.text()),
        ..Settings::default()
    };
    let Ok((config, _)) = Config::new(wanted) else {
        return;
    };
    let prefix = &*config.prefix;
    let long = input.one_in(16);
    let [name, other, pattern, record] = [(); 4].map(|()| input.text());
    let name = if long { name.repeat(3) } else { name };
    let tail = String::from_utf8_lossy(input.rest());

    let key = Key::new(prefix, &name);
    assert_eq!(
        key.is_ok(),
        (1..=MAX_NAME).contains(&name.len()),
        "{name:?}"
    );
    check_record_key(prefix, &record);
    check_record_key(prefix, &format!("{prefix}:{{{tail}}}"));
    let Ok(key) = key else { return };
    assert_eq!(
        Key::from_record(prefix, key.record()).as_ref(),
        Some(&key),
        "{name:?}"
    );
    assert_eq!(
        Key::from_record(prefix, key.queue()),
        None,
        "the queue of {name:?} is read as a record"
    );
    assert_eq!(
        hash_tag(key.record()),
        hash_tag(key.queue()),
        "the keys of {name:?} are in two slots"
    );
    let tag = hash_tag(key.record());
    assert!(
        tag.len() < key.record().len() && !tag.is_empty(),
        "{:?} has no hash tag",
        key.record()
    );
    if let Ok(other) = Key::new(prefix, &other) {
        let are_equal = name == *other.name;
        let keys = [key.record(), key.queue()];
        let shared = [other.record(), other.queue()]
            .iter()
            .filter(|k| keys.contains(k))
            .count();
        let expected = if are_equal { 2 } else { 0 };
        assert_eq!(shared, expected, "{key:?} and {other:?}");
        let is_tag_shared = tag == hash_tag(other.record());
        assert_eq!(is_tag_shared, are_equal, "{key:?} and {other:?}");
    }
    let glob = Glob::new(&pattern);
    let redis_pattern = scan_pattern(prefix, &glob);
    if glob.matches(&name) {
        assert!(
            redis_matches(redis_pattern.as_bytes(), key.record().as_bytes()),
            "{redis_pattern:?} passes over {key:?}"
        );
    }
    assert!(
        Glob::new("*").matches(&name) && literal(&name).matches(&name),
        "{name:?}"
    );
    if name != other {
        assert!(!literal(&name).matches(&other), "{name:?} {other:?}");
    }
}

/// A record key that is read belongs to exactly this prefix and name.
fn check_record_key(prefix: &str, record: &str) {
    if let Some(key) = Key::from_record(prefix, record) {
        assert_eq!(key.record(), record);
        assert_eq!(
            Key::new(prefix, &key.name).expect("a name that was read is valid"),
            key,
            "{record:?}"
        );
    }
}

/// The part of a key that Redis Cluster hashes: the text between the first `{` and the first `}`
/// after it, if there is any.
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

/// Matches as Redis does, for patterns of stars, escapes and literal characters.
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
            Some(b'?' | b'[') => panic!(
                "a wildcard is not escaped in {:?}",
                String::from_utf8_lossy(pattern)
            ),
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
        at = after;
        from = taken + 1;
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}
