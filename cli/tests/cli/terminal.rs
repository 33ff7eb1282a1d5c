//! A pseudo-terminal: a process of its own session runs in it, and the screen can be read.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::*;

/// A terminal with one program in its foreground.
pub(crate) struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    pub(crate) program: Child,
}

/// A new terminal: the side of its keyboard and screen, and that of its programs.
pub(crate) fn pair() -> (File, OwnedFd) {
    // The programs of other tests must not inherit it: the terminal would outlive its test.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let keyboard = openpt(flags).expect("a terminal");
    grantpt(&keyboard).expect("granted");
    unlockpt(&keyboard).expect("unlocked");
    tcsetwinsize(&keyboard, window(24, 80)).expect("a size");
    let path = ptsname(&keyboard, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = open(path, flags, Mode::empty()).expect("opens");
    (File::from(keyboard), end)
}

impl Terminal {
    /// Starts a program in a session of its own, with a large window as its controlling terminal.
    pub(crate) fn start(program: &Command) -> Terminal {
        let (keyboard, end) = pair();
        let screen = Arc::default();
        set_size(&keyboard, &screen, 40, 140);
        // `setsid --ctty` makes its standard input the controlling terminal, then runs the program
        // in its own place.
        let mut session = wrapped("setsid --ctty", program);
        session.env("TERM", "xterm-256color");
        let copy = || end.try_clone().expect("a copy");
        session.stdin(copy()).stdout(copy()).stderr(copy());
        let mut output = keyboard.try_clone().expect("a copy");
        let terminal = Terminal {
            keyboard,
            screen,
            program: session.spawn().expect("setsid of util-linux"),
        };
        let screen = Arc::clone(&terminal.screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the last process has closed its side.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..count]);
            }
        });
        terminal
    }

    fn screen<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.screen.lock().unwrap().screen())
    }

    /// The text on the screen now.
    pub(crate) fn text(&self) -> String {
        self.screen(vt100::Screen::contents)
    }

    /// Whether a program has switched to the alternate screen.
    pub(crate) fn is_alternate(&self) -> bool {
        self.screen(vt100::Screen::alternate_screen)
    }

    /// Whether the first cell has a colour.
    pub(crate) fn is_colored(&self) -> bool {
        let color = self.screen(|screen| screen.cell(0, 0).map(vt100::Cell::fgcolor));
        color.is_some_and(|color| color != vt100::Color::Default)
    }

    /// Whether the program gets each key at once, and the terminal echoes none.
    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.keyboard).expect("modes").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// The number and the state of each process in its session, the leader too.
    pub(crate) fn processes(&self) -> Vec<(Pid, String)> {
        let session = self.program.id().to_string();
        let listed = end(Command::new("ps").args(["-o", "pid=,state=", "-s", &session])).stdout;
        let lines = listed
            .lines()
            .filter_map(|line| line.trim().split_once(' '));
        let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
        let found = lines.filter_map(|(number, state)| Some((pid(number)?, state.to_owned())));
        found.collect()
    }

    /// Waits until the program has ended, and returns its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        until_some(LONG, "it ends", || self.program.try_wait().unwrap()).code()
    }

    /// Types these bytes, for instance `"q"` or `"\x03"`.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.keyboard, &self.screen, rows, columns);
    }

    /// Waits until the screen shows this.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) {
        until(LONG, what, || self.text().contains(what));
    }

    /// Waits until the screen does not show this any more.
    #[track_caller]
    pub(crate) fn hides(&self, what: &str) {
        until(LONG, what, || !self.text().contains(what));
    }
}

fn window(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn set_size(keyboard: &File, screen: &Mutex<vt100::Parser>, rows: u16, columns: u16) {
    // Nothing that the program draws for the new size reaches a screen of the old one.
    let mut screen = screen.lock().unwrap();
    tcsetwinsize(keyboard, window(rows, columns)).expect("a size");
    let [rows, columns] = [rows, columns].map(|count| NonZero::new(count).expect("not 0"));
    screen.screen_mut().set_size(rows, columns);
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the screen showed:\n{}", self.text());
        }
        let _ = self.program.kill();
        // The kernel hangs up on the jobs of a shell that has ended. But it continues none that is
        // just stopping at a Ctrl-Z, and such a job would stay stopped for ever. A zombie is dead,
        // and keeps the number of the session from being used again.
        loop {
            let mut living = self.processes();
            living.retain(|(pid, state)| state != "Z" && kill_process(*pid, Signal::KILL).is_ok());
            if living.is_empty() {
                break;
            }
            // A pause between two polls: the kernel ends what was killed.
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.program.wait();
    }
}
