//! Words for a shell, in commands that a person may copy.

use crate::printable::printable;

/// The command that takes a lock away from the holder with this fence.
pub(super) fn release(name: &str, fence: u64) -> String {
    let word = quoted(name);
    if name.starts_with('-') {
        return format!("fairlock release --fence {fence} -- {word}");
    }
    format!("fairlock release {word} --fence {fence}")
}

/// The text as one word of a POSIX shell; with control characters, of bash, ksh and zsh.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if printable(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if printable(c.encode_utf8(&mut [0; 4])) == c.to_string() => word.push(c),
            c => {
                let mut bytes = [0; 4];
                let bytes = c.encode_utf8(&mut bytes).bytes();
                word.extend(bytes.map(|byte| format!("\\x{byte:02x}")));
            }
        }
    }
    word.push('\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word_of_a_shell() {
        for (name, command) in [
            ("invoices:42", "fairlock release invoices:42 --fence 7"),
            ("a b", "fairlock release 'a b' --fence 7"),
            ("it's $(x)", r"fairlock release 'it'\''s $(x)' --fence 7"),
            ("-v", "fairlock release --fence 7 -- -v"),
            ("a\n'b\x1b", r"fairlock release $'a\x0a\'b\x1b' --fence 7"),
            ("数据", "fairlock release '数据' --fence 7"),
        ] {
            assert_eq!(release(name, 7), command);
        }
    }
}
