//! Patterns over names, with the syntax of Redis. They match characters, where Redis would match
//! the bytes of encoded keys.

/// `*` matches any text, `?` one character, `[ab]` `[a-z]` `[^ab]` one character of a class. `\`
/// quotes the next character.
#[derive(Debug, Clone)]
pub(crate) struct Glob(Vec<Piece>);

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Any,
    One,
    Class {
        not: bool,
        ranges: Vec<(char, char)>,
    },
    Char(char),
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Glob {
        let mut pieces = Vec::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            pieces.push(match c {
                '*' => Piece::Any,
                '?' => Piece::One,
                '[' => class(&mut rest),
                '\\' => Piece::Char(rest.next().unwrap_or('\\')),
                c => Piece::Char(c),
            });
        }
        Glob(pieces)
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Takes time linear in the name for each `*`, because it backtracks only to the last `*`.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let mut at = 0;
        let mut rest = name;
        let mut last_star = None;
        loop {
            let next = rest.chars().next();
            match (self.0.get(at), next) {
                (Some(Piece::Any), _) => {
                    last_star = Some((at, rest));
                    at += 1;
                }
                (Some(piece), Some(c)) if piece.admits(c) => {
                    at += 1;
                    rest = &rest[c.len_utf8()..];
                }
                (None, None) => return true,
                _ => {
                    // Backtrack: let the last star match one character more.
                    let Some((star, from)) = last_star else {
                        return false;
                    };
                    let Some(c) = from.chars().next() else {
                        return false;
                    };
                    rest = &from[c.len_utf8()..];
                    last_star = Some((star, rest));
                    at = star + 1;
                }
            }
        }
    }
}

impl Piece {
    fn admits(&self, c: char) -> bool {
        match self {
            Piece::Any => false,
            Piece::One => true,
            Piece::Class { not, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *not
            }
            Piece::Char(wanted) => *wanted == c,
        }
    }
}

/// Reads a class, from behind its `[` up to the `]` or the end of the pattern.
fn class(rest: &mut std::str::Chars<'_>) -> Piece {
    let not = rest.as_str().starts_with('^');
    if not {
        rest.next();
    }
    let mut ranges = Vec::new();
    while let Some(c) = rest.next() {
        let from = match c {
            ']' => break,
            '\\' => rest.next().unwrap_or('\\'),
            c => c,
        };
        let mut ahead = rest.clone();
        match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                ranges.push((from.min(to), from.max(to)));
                *rest = ahead;
            }
            _ => ranges.push((from, from)),
        }
    }
    Piece::Class { not, ranges }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_by_characters() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a\nb", true),
            ("**a**", "ba", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-", false),
            ("*ab", "aab", true),
            ("?", "é", true),
            ("?", "{", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("[{é]", "é", true),
            ("[a-c]", "b", true),
            ("[c-a]", "b", true),
            ("[^a-c]", "b", false),
            ("[^a-c]", "🦀", true),
            ("[^]", "x", true),
            ("[]", "x", false),
            ("[a-]", "-", true),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(
                Glob::new(pattern).matches(name),
                expected,
                "{pattern:?} {name:?}"
            );
        }
    }
}
