//! Names and labels come from other programs. On a terminal, what is in them must not move the
//! cursor, hide text or change its order.

use std::borrow::Cow;

/// The text, with an escape such as `\n` or `\u{1b}` for each character that would not be shown as
/// itself.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

fn is_unsafe(c: char) -> bool {
    // Besides control characters: line separators, and marks that turn the direction of the text.
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert!(matches!(printable("né 数据"), Cow::Borrowed("né 数据")));
    }
}
