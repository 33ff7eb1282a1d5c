//! Scripts with one line changed, to show that the search finds what is wrong.

/// One line of the shipped scripts, and what stands there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mutant {
    /// The line, as it stands in the scripts, without what is before and after it in its line.
    pub(crate) line: &'static str,
    /// What is there instead.
    pub(crate) instead: &'static str,
}

impl Mutant {
    /// The script with the line changed; as it is, if the line is not a part of it.
    pub(super) fn alter(&self, source: &str) -> String {
        source
            .lines()
            .map(|line| {
                if line.trim() == self.line {
                    self.instead
                } else {
                    line
                }
                .to_owned()
                    + "\n"
            })
            .collect()
    }

    /// How many of the scripts' lines it changes. The part that all share counts once for each.
    pub(crate) fn lines_changed(&self) -> usize {
        let is_it = |line: &&str| line.trim() == self.line;
        crate::script::sources()
            .map(|source| source.lines().filter(is_it).count())
            .sum()
    }
}
