//! A pseudo-terminal: a process of its own session runs in it, and the screen can be read.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::process::wrapped;
use crate::support::{until, until_some};

/// A terminal with one program in its foreground.
pub(crate) struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    pub(crate) program: Child,
}

/// A new terminal: the side of its keyboard and screen, and that of its programs.
pub(crate) fn pair() -> (File, OwnedFd) {
    // The programs of other tests must not inherit it: the terminal would outlive its test.
    let keyboard =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&keyboard).expect("granted");
    unlockpt(&keyboard).expect("unlocked");
    let path = ptsname(&keyboard, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = open(path, flags, Mode::empty()).expect("opens");
    (File::from(keyboard), end)
}

impl Terminal {
    /// Starts a program in a session of its own, with a terminal of this size as its controlling
    /// terminal.
    pub(crate) fn start(program: &Command, rows: u16, columns: u16) -> Terminal {
        let (keyboard, end) = pair();
        set_size(&keyboard, rows, columns);
        // `setsid --ctty` makes its standard input the controlling terminal, then runs the program
        // in its own place.
        let mut session = wrapped(&["setsid", "--ctty"], program);
        session.env("TERM", "xterm-256color");
        let copy = || end.try_clone().expect("a copy");
        let program = session
            .stdin(copy())
            .stdout(copy())
            .stderr(copy())
            .spawn()
            .expect("setsid of util-linux");
        drop(session);
        drop(end);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            cells(rows),
            cells(columns),
            1000,
        )));
        let (mut output, shown) = (keyboard.try_clone().expect("a copy"), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the last process has closed its side.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("the screen").process(&bytes[..count]);
            }
        });
        Terminal {
            keyboard,
            screen,
            program,
        }
    }

    /// The text on the screen now.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    /// Whether a program has switched to the alternate screen.
    pub(crate) fn is_alternate(&self) -> bool {
        self.screen
            .lock()
            .expect("the screen")
            .screen()
            .alternate_screen()
    }

    /// Whether the first cell has a colour.
    pub(crate) fn is_colored(&self) -> bool {
        let parser = self.screen.lock().expect("the screen");
        let cell = parser.screen().cell(0, 0);
        cell.is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    /// Whether the program gets each key at once, and the terminal echoes none.
    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.keyboard).expect("modes").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits until the program has ended, and returns its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        until_some(Duration::from_secs(20), "the program ends", || {
            self.program.try_wait().expect("its state")
        })
        .code()
    }

    /// Types these bytes, for instance `"q"` or `"\x03"`.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.keyboard, rows, columns);
        self.screen
            .lock()
            .expect("the screen")
            .screen_mut()
            .set_size(cells(rows), cells(columns));
    }

    /// Waits until the screen shows this.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) {
        until(Duration::from_secs(20), what, || self.text().contains(what));
    }

    /// Waits until the screen does not show this any more.
    #[track_caller]
    pub(crate) fn hides(&self, what: &str) {
        until(Duration::from_secs(20), what, || {
            !self.text().contains(what)
        });
    }
}

pub(crate) fn set_size(keyboard: &File, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(keyboard.as_fd(), size).expect("a size");
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has rows and columns")
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the screen showed:\n{}", self.text());
        }
        let _ = self.program.kill();
        // The kernel hangs up on the jobs of a shell that has ended. But it continues none that is
        // just stopping at a Ctrl-Z, and such a job would stay stopped for ever.
        let session = Pid::from_child(&self.program);
        while kill_session(session) {
            // A pause between two polls: the kernel ends what was killed.
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.program.wait();
    }
}

/// Sends KILL to each process of the session, and says whether one was alive.
fn kill_session(session: Pid) -> bool {
    let session = session.as_raw_nonzero().to_string();
    let mut any = false;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace();
        let (state, of) = (fields.next(), fields.nth(2));
        // A zombie is dead, and keeps the number of the session from being used again.
        if matches!(state, Some("Z" | "X")) || of != Some(&*session) {
            continue;
        }
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| Pid::from_raw(name.parse().ok()?));
        any |= pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
    }
    any
}
