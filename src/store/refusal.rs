//! A server's error, read. The servers word their errors differently, and this file alone knows
//! their texts. All other code looks at the code of the error.
//!
//! Inside a script, Redis 6.2 hides the code in the text, and 7.0 and Valkey add the script and the
//! line. No server gives a code to a right that a script lacks.

/// A server's error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The first word of the error, such as `READONLY`.
    pub(super) code: String,
    /// The rest of it, without the place in the script, which helps only the script's author.
    pub(super) message: String,
    /// A script raised it, perhaps after its first write. The writes of such a script stay.
    pub(super) may_have_written: bool,
}

/// A thing that the user has no right to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Command,
    Key,
    Channel,
}

/// A script is refused with these codes at its first write or before it, as a whole. The states
/// behind them do not change while it runs. WRONGTYPE: R20 (write order) has it read first.
const BEFORE_THE_FIRST_WRITE: [&str; 6] = [
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "MISCONF",
    "OOM",
    "WRONGTYPE",
];

/// Redis 6.2 and 7.0.
const LACKS_IN_SCRIPT: &str = "The user executing the script can't ";
/// Valkey, and Redis from 7.2 on.
const LACKS_IN_SCRIPT_NEWER: &str = "ACL failure in script: ";

impl Refusal {
    /// Reads an error that begins with this word and goes on with these details.
    pub(super) fn read(code: &str, details: &str) -> Refusal {
        let (code, text, in_script) = match in_script_text(code, details) {
            Some(text) => split_code(text),
            None => match details.rfind(" script: ") {
                Some(at) if details[at..].contains("@user_script") => (code, &details[..at], true),
                _ => (code, details, false),
            },
        };
        let code = if lack_in_script(text).is_some() {
            "NOPERM"
        } else {
            code
        };
        Refusal {
            code: code.to_owned(),
            message: in_short(code, text).unwrap_or_else(|| with_needed_rights(code, text)),
            may_have_written: in_script && !BEFORE_THE_FIRST_WRITE.contains(&code),
        }
    }

    /// Reads an error that a script caught and passed on.
    pub(super) fn read_caught(text: &str) -> Refusal {
        let (code, details) = text.split_once(' ').unwrap_or((text, ""));
        Refusal::read(code, details)
    }

    /// The thing that the user has no right to use, if that is the error.
    pub(super) fn lack(&self) -> Option<Lack> {
        (self.code == "NOPERM").then(|| lack_of(&self.message))
    }
}

/// Plain words for texts that mislead here: one says how to switch a protection off, and one speaks of
/// a command that the user has never written.
fn in_short(code: &str, text: &str) -> Option<String> {
    match code {
        "DENIED" if text.contains("protected mode") => {
            let (first, _) = text.split_once(". ").unwrap_or((text, ""));
            Some(format!(
                "{first}: the server takes connections from its own host alone until it has a \
                 password"
            ))
        }
        "NOAUTH" if text.starts_with("HELLO ") || text.starts_with("Authentication required") => {
            Some("Authentication required: the server wants a password, and got none".to_owned())
        }
        _ => None,
    }
}

/// The text behind the place in the script, if Redis 6.2 raised the error there.
fn in_script_text<'a>(code: &str, details: &'a str) -> Option<&'a str> {
    let mut text = if code == "ERR" {
        let (_, text) = details
            .strip_prefix("Error running script (call to ")?
            .split_once("): ")?;
        text
    } else if code == "@user_script:" {
        // Caught by the script: `@user_script: 10: …`.
        details.split_once(": ")?.1
    } else {
        return None;
    };
    while let Some(rest) = without_place(text) {
        text = rest;
    }
    Some(text)
}

/// The text behind `@user_script:301: ` or `@user_script: 301: `, with or without the `@`.
fn without_place(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('@').unwrap_or(text);
    let (line, rest) = rest.strip_prefix("user_script:")?.split_once(": ")?;
    line.trim()
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then_some(rest)
}

/// The code and the rest of an error that Redis 6.2 raised in a script.
fn split_code(text: &str) -> (&str, &str, bool) {
    let bare = text.strip_prefix('-').unwrap_or(text);
    match bare.split_once(' ') {
        Some((code, rest)) if code.bytes().all(|b| b.is_ascii_uppercase()) => (code, rest, true),
        _ => ("ERR", bare, true),
    }
}

fn lack_in_script(text: &str) -> Option<&str> {
    text.strip_prefix(LACKS_IN_SCRIPT)
        .or_else(|| text.strip_prefix(LACKS_IN_SCRIPT_NEWER))
}

fn lack_of(message: &str) -> Lack {
    if message.contains(" run th") {
        Lack::Command
    } else if message.contains(" channel") {
        Lack::Channel
    } else {
        Lack::Key
    }
}

/// The text, and the rights to commands that would have prevented the error.
fn with_needed_rights(code: &str, text: &str) -> String {
    let in_script = lack_in_script(text);
    if code != "NOPERM" && in_script.is_none() || lack_of(text) != Lack::Command {
        return text.to_owned();
    }
    let named = text
        .split_once("run the '")
        .and_then(|(_, rest)| rest.split_once('\''));
    match named {
        Some((command, _)) => format!("{text}; the user needs +{command}"),
        None => text.to_owned(),
    }
}

/// Whether a script was refused a command which the message does not name.
pub(super) fn lacks_unnamed_command(message: &str) -> bool {
    lack_in_script(message).is_some()
        && lack_of(message) == Lack::Command
        && !message.contains("run the '")
}

/// Whether a script was refused a key, because the key's slot is about to get another owner.
pub(super) fn is_of_another_node(message: &str) -> bool {
    message.contains("access a non local key")
}

/// Whether the server does not have this command.
pub(super) fn is_unknown_command(message: &str) -> bool {
    message.contains("unknown command") || calls_unknown_command(message)
}

/// Whether a script called a command that the server does not have. No server names it.
pub(super) fn calls_unknown_command(message: &str) -> bool {
    // "Unknown Redis command called from script", and without "Redis" on Valkey.
    message.contains("command called from ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const READONLY: &str = "You can't write against a read only replica.";
    const NOREPLICAS: &str = "Not enough good replicas to write.";
    const OOM: &str = "command not allowed when used memory > 'maxmemory'.";
    const WRONGTYPE: &str = "Operation against a key holding the wrong kind of value";
    const MISCONF_62: &str = "Redis is configured to save RDB snapshots, but it is currently not \
                              able to persist on disk. Please check the Redis logs for details \
                              about the RDB error.";
    const MISCONF_70: &str = "Redis is configured to save RDB snapshots, but it's currently unable \
                              to persist to disk. Please check the Redis logs for details about \
                              the RDB error.";

    /// The texts in these tests are those that 6.2.14, 7.0.15 and Valkey 9.1.2 sent. Digests and
    /// MISCONF are cut short.
    fn read(error: &str) -> Refusal {
        let (code, details) = error.split_once(' ').expect("a code and details");
        Refusal::read(code, details)
    }

    fn in_62(text: &str) -> Refusal {
        read(&format!(
            "ERR Error running script (call to f_9a3dbf4c): @user_script:422: {text}"
        ))
    }

    fn in_70_and_valkey(text: &str) -> [Refusal; 2] {
        ["9a3dbf4c, on", "on"]
            .map(|place| read(&format!("{text} script: {place} @user_script:422.")))
    }

    #[track_caller]
    fn assert_reads(
        refusals: impl IntoIterator<Item = Refusal>,
        code: &str,
        message: &str,
        written: bool,
    ) {
        for refusal in refusals {
            assert_eq!(
                (refusal.code.as_str(), refusal.message.as_str()),
                (code, message)
            );
            assert_eq!(refusal.may_have_written, written, "{code}");
        }
    }

    #[test]
    fn refusals_of_a_first_write_read_alike_from_all_servers() {
        for (code, message) in [
            ("READONLY", READONLY),
            ("NOREPLICAS", NOREPLICAS),
            ("OOM", OOM),
            ("MISCONF", MISCONF_62),
            ("MISCONF", MISCONF_70),
        ] {
            let text = format!("{code} {message}");
            let of_62 = in_62(&format!("@user_script: 422: -{text}"));
            let others = in_70_and_valkey(&text);
            let outside = read(&text);
            assert_reads(
                others.into_iter().chain([of_62, outside]),
                code,
                message,
                false,
            );
        }
        let text = format!("WRONGTYPE {WRONGTYPE}");
        let refusals = in_70_and_valkey(&text)
            .into_iter()
            .chain([in_62(&text), read(&text)]);
        assert_reads(refusals, "WRONGTYPE", WRONGTYPE, false);
        for (code, message) in [
            (
                "MASTERDOWN",
                "Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            ),
            (
                "BUSY",
                "Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            ),
            ("NOSCRIPT", "No matching script."),
            ("ERR", "max number of clients reached"),
            (
                "ERR",
                "Error compiling script (new function): user_script:1: '=' expected near 'is'",
            ),
        ] {
            assert_reads([read(&format!("{code} {message}"))], code, message, false);
        }
    }

    #[test]
    fn a_right_that_a_script_lacks_is_noperm_on_all_servers() {
        let cannot = "The user executing the script can't run this command or subcommand";
        let [of_70, _] = in_70_and_valkey(&format!("ERR {cannot}"));
        assert_reads(
            [in_62(&format!("@user_script: 22: {cannot}")), of_70],
            "NOPERM",
            cannot,
            true,
        );
        assert!(lacks_unnamed_command(cannot));
        let cannot = "ACL failure in script: User u has no permissions to run the 'hdel' command";
        let [_, of_valkey] = in_70_and_valkey(&format!("ERR {cannot}"));
        assert_reads(
            [of_valkey],
            "NOPERM",
            &format!("{cannot}; the user needs +hdel"),
            true,
        );
        assert!(!lacks_unnamed_command(cannot));
        for eval in [
            "this user has no permissions to run the 'eval' command or its subcommand",
            "this user has no permissions to run the 'eval' command",
            "User u has no permissions to run the 'eval' command",
        ] {
            let refusal = read(&format!("NOPERM {eval}"));
            assert_reads(
                [refusal],
                "NOPERM",
                &format!("{eval}; the user needs +eval"),
                false,
            );
        }
    }

    #[test]
    fn a_caught_error_says_what_the_user_may_not_use() {
        for (text, lack) in [
            (
                "@user_script: 10: The user executing the script can't run this command or subcommand",
                Lack::Command,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Lack::Command,
            ),
            (
                "ERR ACL failure in script: User key has no permissions to run the 'hdel' command",
                Lack::Command,
            ),
            (
                "@user_script: 10: The user executing the script can't access at least one of the keys mentioned in the command arguments",
                Lack::Key,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
                Lack::Key,
            ),
            (
                "ERR ACL failure in script: No permissions to access a key",
                Lack::Key,
            ),
            (
                "@user_script: 10: The user executing the script can't publish to the channel mentioned in the command",
                Lack::Channel,
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command",
                Lack::Channel,
            ),
            (
                "ERR ACL failure in script: No permissions to access a channel",
                Lack::Channel,
            ),
        ] {
            assert_eq!(Refusal::read_caught(text).lack(), Some(lack), "{text}");
        }
        for (text, code) in [
            (
                "@user_script: 1: -READONLY You can't write against a read only replica.",
                "READONLY",
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                "NOREPLICAS",
            ),
            ("ERR wrong number of arguments for 'hset' command", "ERR"),
        ] {
            let refusal = Refusal::read_caught(text);
            assert_eq!(
                (refusal.lack(), refusal.code.as_str()),
                (None, code),
                "{text}"
            );
        }
    }

    #[test]
    fn text_that_misleads_a_user_is_put_in_plain_words() {
        let denied = "Redis is running in protected mode because protected mode is enabled and no \
                      password is set for the default user. In this mode connections are only \
                      accepted from the loopback interface. If you want to connect 1) Just disable \
                      protected mode sending the command 'CONFIG SET protected-mode no'";
        let message = Refusal::read("DENIED", denied).message;
        assert!(
            message.ends_with("from its own host alone until it has a password"),
            "{message}"
        );
        assert!(!message.contains("disable"), "{message}");
        let no_login = "HELLO must be called with the client already authenticated, otherwise the \
                        HELLO AUTH <user> <pass> option can be used";
        let message = Refusal::read("NOAUTH", no_login).message;
        assert!(message.starts_with("Authentication required"), "{message}");
        assert!(!message.contains("HELLO"), "{message}");
        let of_proxy = "this address is not on the list";
        assert_eq!(Refusal::read("DENIED", of_proxy).message, of_proxy);
    }

    /// It may have written before it failed.
    #[test]
    fn a_script_that_breaks_is_in_doubt_on_all_servers() {
        let of_62 = [
            ("user_script:1: boom", "boom"),
            (
                "Script killed by user with SCRIPT KILL...",
                "Script killed by user with SCRIPT KILL...",
            ),
            (
                "@user_script: 1: Unknown Redis command called from Lua script",
                "Unknown Redis command called from Lua script",
            ),
        ];
        for (text, message) in of_62 {
            assert_reads([in_62(text)], "ERR", message, true);
        }
        for text in [
            "user_script:1: boom",
            "Script killed by user with SCRIPT KILL.",
        ] {
            assert_reads(in_70_and_valkey(&format!("ERR {text}")), "ERR", text, true);
        }
    }
}
