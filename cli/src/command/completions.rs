//! `fairlock completions`: the completion script of a shell.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::exit::{Exit, Failure};
use crate::output;

/// Prints a shell's completion script
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlock completions bash > ~/.local/share/bash-completion/completions/fairlock
  fairlock completions zsh > ~/.zfunc/_fairlock
  fairlock completions fish > ~/.config/fish/completions/fairlock.fish")]
pub(crate) struct Completions {
    /// The shell that will read the script
    shell: Shell,
}

impl Completions {
    /// `program` is the whole command line.
    pub(crate) fn run(&self, mut program: Command) -> Result<Exit, Failure> {
        // clap_complete panics where it cannot write.
        let mut script = Vec::new();
        generate(self.shell, &mut program, "fairlock", &mut script);
        output::line(String::from_utf8_lossy(&script).trim_end())?;
        Ok(Exit::OK)
    }
}
