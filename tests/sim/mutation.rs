//! Scripts that are wrong on purpose, to show that the simulator and the search of small worlds
//! find it.

use std::collections::BTreeSet;

use crate::script;
use crate::store::memory::server::ScriptServer;

/// One line of the shipped scripts, and what replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScriptMutation {
    /// The line or a part of it, exactly as the scripts have it. It may go on in the next line.
    pub(crate) line: &'static str,
    /// The text that replaces it.
    pub(crate) instead: &'static str,
}

/// No defect: a list with one dead entry is long enough to be written anew. With the shipped number,
/// only a queue with more than 64 dead entries is.
pub(crate) const REWRITES_EARLY: ScriptMutation = ScriptMutation {
    line: "entries > 2 * waiter_records + 64",
    instead: "entries > waiter_records",
};

/// The scripts that count what is left of a list which lost its entries, and look at that count
/// alone.
pub(crate) const COUNTS_WHAT_IS_LEFT: [ScriptMutation; 2] = [
    ScriptMutation {
        line: "if redis.call('LLEN', queue_key) < heads_popped + entries then",
        instead: "if false then",
    },
    ScriptMutation {
        line: "if length < math.max(entries, waiter and 1 or 0) then",
        instead: "if length < entries then",
    },
];

impl ScriptMutation {
    /// The mutated script. A script without the line stays as it is.
    fn apply(&self, source: &str) -> String {
        source.replace(self.line, self.instead)
    }

    /// Panics unless some script has the line, and each script that has it has one such line. So a
    /// mutation can neither miss its line nor change another line than it names. A part that
    /// several scripts include, or one script includes twice, repeats its lines.
    #[track_caller]
    fn assert_is_unambiguous(&self) {
        let mut is_found = false;
        for source in script::sources() {
            let lines = self.lines_of(source);
            is_found |= !lines.is_empty();
            assert!(
                lines.len() <= 1,
                "{:?} is in several lines of a script: {lines:?}",
                self.line
            );
        }
        assert!(is_found, "no script has the line {:?}", self.line);
    }

    /// The different lines that it would change, each in full.
    fn lines_of<'a>(&self, source: &'a str) -> BTreeSet<&'a str> {
        let found = source.match_indices(self.line);
        found
            .map(|(at, text)| {
                let start = source[..at].rfind('\n').map_or(0, |end| end + 1);
                let after = at + text.len();
                let end = source[after..].find('\n').unwrap_or(0);
                &source[start..after + end]
            })
            .collect()
    }
}

/// An in-memory server that runs the shipped scripts with these mutations, under the digests of
/// the shipped ones. Without mutations it is the server that the crate ships.
///
/// # Panics
/// If a line is not where it should be, or a mutated script is not Lua.
#[track_caller]
pub(crate) fn server_with(mutations: &[ScriptMutation]) -> ScriptServer {
    for mutation in mutations {
        mutation.assert_is_unambiguous();
    }
    ScriptServer::with_scripts(&|source| {
        mutations
            .iter()
            .fold(source.to_owned(), |script, mutation| {
                mutation.apply(&script)
            })
    })
}

#[test]
#[should_panic(expected = "no script has the line")]
fn mutation_without_its_line_is_refused() {
    server_with(&[ScriptMutation {
        line: "this is no line",
        instead: "",
    }]);
}

#[test]
#[should_panic(expected = "is in several lines of a script")]
fn mutation_of_several_lines_is_refused() {
    server_with(&[ScriptMutation {
        line: "return",
        instead: "",
    }]);
}

#[test]
#[should_panic(expected = "the scripts are Lua")]
fn mutation_that_is_not_lua_is_refused() {
    server_with(&[ScriptMutation {
        line: "if now > not_after then return { 'late', now, 0 } end",
        instead: "if now >",
    }]);
}
