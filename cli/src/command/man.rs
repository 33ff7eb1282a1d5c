//! `fairlock man`: the man pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::{Man as Page, generate_to};

use crate::exit::{Exit, Failure};
use crate::output;

/// Prints the man page, or writes the man pages of all commands
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlock man | man -l -
  fairlock man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Write fairlock.1, fairlock-run.1 and so on into this directory, which is made if it is not
    /// there. Default: print fairlock.1
    directory: Option<PathBuf>,
}

impl Man {
    /// `program` is the whole command line.
    pub(crate) fn run(&self, program: Command) -> Result<Exit, Failure> {
        // The pages have the options that the short help leaves out, too.
        let program = program.mut_args(|argument| argument.hide_short_help(false));
        if let Some(directory) = &self.directory {
            let written = fs::create_dir_all(directory);
            let written = written.and_then(|()| generate_to(program, directory));
            written.map_err(|error| {
                Failure::usage(format!("cannot write to {}: {error}", directory.display()))
            })?;
        } else {
            let mut page = Vec::new();
            // No write to memory fails.
            let _ = Page::new(program).render(&mut page);
            output::line(String::from_utf8_lossy(&page).trim_end())?;
        }
        Ok(Exit::OK)
    }
}
