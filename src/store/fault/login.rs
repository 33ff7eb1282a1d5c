//! The refusal of a login, without the password.

use crate::error::passes_by_itself;
use crate::store::{Login, StoreFault};

/// The answers of servers to AUTH and to a client that has not logged in. They repeat nothing.
const LOGIN_REFUSALS: [&str; 8] = [
    "invalid username-password pair",
    "invalid username-password pair or user is disabled.",
    "invalid password",
    "Client sent AUTH, but no password is set",
    "AUTH <password> called without any password configured for the default user. Are you sure \
     your configuration is correct?",
    "wrong number of arguments for 'auth' command",
    "Authentication required.",
    "unknown command",
];

impl StoreFault {
    /// The refusal of a login, without the password. If the user or the password has letters
    /// that do not show, this is named: a file or a variable may have added them.
    pub(in crate::store) fn of_login(self, login: &Login) -> StoreFault {
        let Some(password) = login.password.as_deref() else {
            return self;
        };
        self.with_message(|code, message| {
            let mut message = refusal_of_login(code, &message, password);
            if code == "WRONGPASS" || message.contains("invalid password") {
                let user = login.user.as_deref().unwrap_or_default();
                let hints = [("user's name", user), ("password", password)];
                let hints = hints.map(|(what, text)| not_shown_in(what, text)).concat();
                if !hints.is_empty() {
                    message.truncate(message.trim_end_matches('.').len());
                }
                message += &hints;
            }
            message
        })
    }
}

/// The text of a refusal of this login, without the password.
///
/// To replace the password in the text would show it: the letters around it tell which word it was
/// cut out of. So a text that servers are known to send stays as it is, and any other stays only if
/// it has nothing in common with the password. A server that does not know AUTH repeats its
/// arguments, and cuts long ones short or escapes them.
fn refusal_of_login(code: &str, message: &str, password: &str) -> String {
    let said = message.split(", with args").next().unwrap_or_default();
    let is_known = LOGIN_REFUSALS.contains(&said)
        || passes_by_itself(code, said)
        || ["unknown command 'AUTH'", "unknown command `AUTH`"]
            .iter()
            .any(|known| said.eq_ignore_ascii_case(known));
    if is_known || !repeats_some_of(said, password) {
        said.to_owned()
    } else {
        "its words are not shown, since they may repeat the password".to_owned()
    }
}

/// Whether three letters or digits of the secret that follow each other are in the text, too,
/// whatever is between them there. Of a shorter secret: any.
fn repeats_some_of(text: &str, secret: &str) -> bool {
    if secret.is_empty() {
        return false;
    }
    // An escape may stand for any of its letters.
    if text.contains('\\') {
        return true;
    }
    let plain = |text: &str| -> Vec<char> {
        let letters = text.chars().filter(|letter| letter.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let (said, letters) = (plain(text), plain(secret));
    let has_part = |size: usize| {
        let mut parts = letters.windows(size);
        parts.any(|part| said.windows(size).any(|other| other == part))
    };
    match letters.len() {
        0 => text.contains(|letter: char| secret.contains(letter)),
        short @ 1..=2 => has_part(short),
        _ => has_part(3),
    }
}

/// A part of a sentence: that this part of a login has letters that an editor does not show, at one
/// of its ends or as control characters. Empty if it has none.
fn not_shown_in(what: &str, text: &str) -> String {
    let found = if text.ends_with(['\n', '\r']) {
        "ends with an end of line"
    } else if text.ends_with(char::is_whitespace) {
        "ends with white space"
    } else if text.starts_with('\u{feff}') {
        "begins with a byte order mark"
    } else if text.starts_with(char::is_whitespace) {
        "begins with white space"
    } else if text.contains(char::is_control) {
        "has a control character"
    } else {
        return String::new();
    };
    format!("; the {what} {found}, which counts as a part of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter, words of the texts, letters beyond ASCII, escapes, and a long one.
    const PASSWORDS: [&str; 20] = [
        "b",
        "e",
        "a1",
        "user",
        "pair",
        "disabled",
        "invalid",
        "password",
        "AUTH",
        "auth",
        "unknown command",
        "ERR",
        "hunter2",
        "pä ss/wörd",
        "密码密码",
        "***",
        "\"\\'\n",
        " ",
        "%20",
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123\
         456789012345678901234567890123456789",
    ];

    #[test]
    fn known_refusals_of_a_login_stay_whole() {
        for password in PASSWORDS.into_iter().chain([""]) {
            for text in [
                "invalid username-password pair or user is disabled.",
                "invalid password",
                "Client sent AUTH, but no password is set",
                "Authentication required.",
            ] {
                assert_eq!(
                    refusal_of_login("ERR", text, password),
                    text,
                    "{password:?}"
                );
            }
            let text = "max number of clients reached";
            assert_eq!(
                refusal_of_login("ERR", text, password),
                text,
                "{password:?}"
            );
            let loading = "Redis is loading the dataset in memory";
            assert_eq!(refusal_of_login("LOADING", loading, password), loading);
            let unknown = "unknown command `AUTH`";
            let with = format!("{unknown}, with args beginning with: `{password}`, ");
            assert_eq!(refusal_of_login("ERR", &with, password), unknown);
        }
    }

    #[test]
    fn refusal_that_repeats_a_password_is_not_shown() {
        let hidden = "its words are not shown, since they may repeat the password";
        for password in PASSWORDS {
            let cut: String = password.chars().take(32).collect();
            for repeated in [
                password.to_owned(),
                password.to_uppercase(),
                password.escape_debug().to_string(),
                format!("\"{}\"", password.escape_default()),
                cut,
            ] {
                let text = format!("denied: {repeated}");
                assert_eq!(refusal_of_login("ERR", &text, password), hidden, "{text}");
            }
        }
        let text = "token has expired, sign in again";
        assert_eq!(refusal_of_login("ERR", text, "zq7/xw9"), text);
        assert_eq!(refusal_of_login("ERR", text, ""), text);
    }
}
