//! Names and labels come from other programs. On a terminal, what is in them must not move the
//! cursor, hide text or change its order.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr as _;

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

/// The printable text, or its beginning and `…`, in at most this many columns of a terminal.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let text = printable(text);
    if text.width() <= columns {
        return text.into_owned();
    }
    if columns == 0 {
        return String::new();
    }
    // The width of a text is not the sum of its characters': a selector makes an emoji wider.
    let ends = text.char_indices().map(|(end, _)| end);
    let kept = ends.take_while(|end| text[..*end].width() < columns).last();
    format!("{}…", &text[..kept.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_columns_not_by_bytes() {
        for (text, columns, shown) in [
            ("invoices", 8, "invoices"),
            ("invoices:42", 8, "invoice…"),
            ("漢字漢字", 6, "漢字…"),
            ("漢字", 4, "漢字"),
            ("a\x1b[31mb", 20, "a\\u{1b}[31mb"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
        ] {
            assert_eq!(cut(text, columns), shown);
        }
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert!(matches!(printable("né 数据"), Cow::Borrowed("né 数据")));
    }
}
