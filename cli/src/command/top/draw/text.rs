//! Text that fits its place.

use ratatui::text::Span;

use crate::printable::printable;

/// How many columns of the terminal a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, cut to this many columns. Nothing in it moves the cursor.
pub(super) fn cut(text: &str, columns: usize) -> String {
    let text = printable(text);
    if width(&text) <= columns {
        return text.into_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for letter in text.chars() {
        used += width(letter.encode_utf8(&mut [0; 4]));
        // The last column is for the sign that something is missing.
        if used >= columns {
            break;
        }
        kept.push(letter);
    }
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// The text in exactly this many columns, at their left.
pub(super) fn left(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let padding = columns.saturating_sub(width(&text));
    text + &" ".repeat(padding)
}

/// The text in exactly this many columns, at their right.
pub(super) fn right(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    " ".repeat(columns.saturating_sub(width(&text))) + &text
}

/// All parts with two blanks between them, and the last one that fits in part is cut.
pub(super) fn all_joined(parts: &[String], columns: usize) -> String {
    cut(&parts.join("  "), columns)
}

/// As many of these parts as fit, with two blanks between them. The first is cut if it must be.
pub(super) fn joined(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if line.is_empty() {
            line = cut(part, columns);
        } else if width(&line) + 2 + width(part) <= columns {
            line = format!("{line}  {part}");
        } else {
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_columns_not_by_bytes() {
        assert_eq!(cut("invoices", 8), "invoices");
        assert_eq!(cut("invoices:42", 8), "invoice…");
        assert_eq!(cut("漢字漢字", 6), "漢字…");
        assert_eq!(cut("漢字", 4), "漢字");
        assert_eq!(cut("a\x1b[31mb", 20), "a\\u{1b}[31mb");
        assert_eq!(cut("abc", 0), "");
        assert_eq!(left("漢", 4), "漢  ");
        assert_eq!(right("7", 4), "   7");
    }

    #[test]
    fn parts_that_do_not_fit_are_left_out() {
        let parts = ["one", "two", "", "three"].map(str::to_owned);
        assert_eq!(joined(&parts, 20), "one  two  three");
        assert_eq!(joined(&parts, 14), "one  two");
        assert_eq!(joined(&parts, 2), "o…");
    }
}
