//! Keys, from the bytes that a terminal sends.
//!
//! crossterm has a reader of its own. It loses what this one keeps, also behind a poll for the end
//! of the terminal:
//!
//! - It hears of new bytes once. A key behind a change of the window's size is read only with the
//!   next key, and so is the rest of a long text. A poll that still sees them keeps a core busy.
//! - An escape at the end of a read is a key. On a slow line, an arrow key would quit.
//! - If the terminal goes away within a sequence, it reads again and again, and never returns.

use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Event;

/// A key, or a text that was pasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// With the control key; the letter is lower case.
    Control(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Pasted text. It is never taken for commands: it could force a release.
    Pasted(String),
    /// A key that nothing here uses.
    Other,
}

/// An escape without more bytes for this long is the key of that name.
const ESCAPE_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// How long the rest of a sequence may take, on a slow link. Then it is dropped: its begin must not
/// be taken for the escape key, which quits.
const SEQUENCE_TIME: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};
/// No escape sequence of a key is longer.
const LONGEST_SEQUENCE: usize = 32;
/// The rest of a longer text is dropped.
const LONGEST_PASTE: usize = 4096;
const PASTE_ENDS: &[u8] = b"\x1b[201~";

/// Reads keys until the terminal is gone, and says so then. Blocks for as long as that.
pub(super) fn read_all(events: &Sender<Event>) {
    let mut decoder = Decoder::default();
    while let Some(keys) = read(&mut decoder) {
        for key in keys {
            if events.send(Event::Key(key)).is_err() {
                return;
            }
        }
    }
    // The receiver may be gone as well: then there is nobody to inform.
    let _ = events.send(Event::KeyboardGone);
}

/// The keys that come next, possibly none. `None` if the terminal is gone.
fn read(decoder: &mut Decoder) -> Option<Vec<Key>> {
    let keyboard = rustix::stdio::stdin();
    let time = decoder.time_for_the_rest();
    match poll(&mut [PollFd::new(&keyboard, PollFlags::IN)], time) {
        Ok(0) => return Some(decoder.on_silence()),
        Ok(_) => {}
        Err(Errno::INTR) => return Some(Vec::new()),
        Err(_) => return None,
    }
    let mut bytes = [0; 1024];
    match rustix::io::read(keyboard, &mut bytes) {
        Ok(0) => None,
        Ok(count) => Some(decoder.decode(&bytes[..count])),
        Err(Errno::INTR | Errno::AGAIN) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// Turns bytes into keys. A sequence may come in parts.
#[derive(Debug, Default)]
struct Decoder {
    /// Bytes that are no key yet.
    rest: Vec<u8>,
    /// The text so far, while a paste lasts.
    pasted: Option<Vec<u8>>,
}

impl Decoder {
    fn time_for_the_rest(&self) -> Option<&'static Timespec> {
        match (&self.pasted, &self.rest[..]) {
            (Some(_), _) | (None, []) => None,
            (None, [0x1b]) => Some(&ESCAPE_TIME),
            (None, _) => Some(&SEQUENCE_TIME),
        }
    }

    /// No more bytes came in time.
    fn on_silence(&mut self) -> Vec<Key> {
        match &std::mem::take(&mut self.rest)[..] {
            [0x1b] => vec![Key::Escape],
            _ => Vec::new(),
        }
    }

    fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            if self.pasted.is_some() {
                let Some(text) = self.end_of_paste() else {
                    return keys;
                };
                keys.push(Key::Pasted(text));
            }
            let Some((key, length)) = first_key(&self.rest) else {
                return keys;
            };
            self.rest.drain(..length);
            match key {
                Found::Key(Key::Other) => {}
                Found::Key(key) => keys.push(key),
                Found::Paste => self.pasted = Some(Vec::new()),
            }
        }
    }

    /// The pasted text, once its end has come.
    fn end_of_paste(&mut self) -> Option<String> {
        let text = self.pasted.as_mut()?;
        let found = |window: &[u8]| window == PASTE_ENDS;
        let end = self.rest.windows(PASTE_ENDS.len()).position(found);
        // The last bytes may be the first part of the end.
        let count = end.unwrap_or(self.rest.len().saturating_sub(PASTE_ENDS.len() - 1));
        text.extend(self.rest.drain(..count));
        text.truncate(LONGEST_PASTE);
        end?;
        self.rest.drain(..PASTE_ENDS.len());
        let text = self.pasted.take()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

enum Found {
    Key(Key),
    /// From here on the bytes are pasted text.
    Paste,
}

/// The first key, and how many bytes it has. `None` if its last bytes have not come yet.
fn first_key(bytes: &[u8]) -> Option<(Found, usize)> {
    let key = |key, length| Some((Found::Key(key), length));
    match *bytes.first()? {
        0x1b => sequence(bytes),
        b'\r' | b'\n' => key(Key::Enter, 1),
        0x7f | 0x08 => key(Key::Backspace, 1),
        byte @ 0x01..=0x1a => key(Key::Control((byte - 1 + b'a') as char), 1),
        byte @ 0x20..=0x7e => key(Key::Char(byte as char), 1),
        byte => {
            let length = match byte {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => return key(Key::Other, 1),
            };
            match std::str::from_utf8(bytes.get(..length.min(bytes.len()))?) {
                Ok(text) => key(text.chars().next().map_or(Key::Other, Key::Char), length),
                // Cut short: the rest comes with the next bytes.
                Err(error) if error.error_len().is_none() => None,
                Err(_) => key(Key::Other, 1),
            }
        }
    }
}

/// A key that begins with an escape: `ESC [ parameters letter`, or `ESC O letter`.
fn sequence(bytes: &[u8]) -> Option<(Found, usize)> {
    let introducer = *bytes.get(1)?;
    if introducer == b'O' {
        return Some((Found::Key(named(*bytes.get(2)?)), 3));
    }
    if introducer != b'[' {
        return Some((Found::Key(Key::Escape), 1));
    }
    let is_final = |byte: &u8| (0x40..=0x7e).contains(byte);
    let Some(last) = bytes[2..].iter().position(is_final) else {
        let is_key = bytes.len() < LONGEST_SEQUENCE;
        return (!is_key).then_some((Found::Key(Key::Other), bytes.len()));
    };
    let (parameters, length) = (&bytes[2..2 + last], last + 3);
    let found = match (bytes[2 + last], parameters) {
        (b'~', b"200") => Found::Paste,
        (b'~', b"1" | b"7") => Found::Key(Key::Home),
        (b'~', b"4" | b"8") => Found::Key(Key::End),
        (b'~', b"5") => Found::Key(Key::PageUp),
        (b'~', b"6") => Found::Key(Key::PageDown),
        (letter, b"") => Found::Key(named(letter)),
        _ => Found::Key(Key::Other),
    };
    Some((found, length))
}

fn named(letter: u8) -> Key {
    match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'M' => Key::Enter,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_in_one_read_and_byte_by_byte() {
        let typed = "a\x1b[A\x1bOB\x1b[5~é漢\r\x7f\x03\x1b[1;5C\x1b[200~fy\x1b[Z\n\x1b[201~z";
        let keys = [
            Key::Char('a'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::Char('é'),
            Key::Char('漢'),
            Key::Enter,
            Key::Backspace,
            Key::Control('c'),
            Key::Pasted("fy\x1b[Z\n".to_owned()),
            Key::Char('z'),
        ];
        assert_eq!(Decoder::default().decode(typed.as_bytes()), keys);
        let mut decoder = Decoder::default();
        let single: Vec<Key> = typed.bytes().flat_map(|b| decoder.decode(&[b])).collect();
        assert_eq!(single, keys);
    }

    #[test]
    fn escape_alone_is_a_key_after_its_time() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"\x1b"), []);
        assert_eq!(decoder.time_for_the_rest(), Some(&ESCAPE_TIME));
        assert_eq!(decoder.on_silence(), [Key::Escape]);
        assert_eq!(
            decoder.decode(b"\x1b\x1bq"),
            [Key::Escape, Key::Escape, Key::Char('q')]
        );
    }

    #[test]
    fn half_a_sequence_is_not_the_escape_key() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"\x1b["), []);
        assert_eq!(decoder.time_for_the_rest(), Some(&SEQUENCE_TIME));
        assert_eq!(decoder.on_silence(), []);
        assert_eq!(decoder.decode(b"x"), [Key::Char('x')]);
    }

    #[test]
    fn bytes_that_are_no_keys_are_skipped() {
        let mut decoder = Decoder::default();
        let endless = [b"\x1b[".as_slice(), &[b'1'; 100]].concat();
        assert_eq!(decoder.decode(&endless), []);
        assert_eq!(
            decoder.decode(b"\xff\xc3(\0q"),
            [Key::Char('('), Key::Char('q')]
        );
    }
}
