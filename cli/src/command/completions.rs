//! `fairlock completions`: the completion script of a shell.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
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
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        // clap_complete panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "fairlock", &mut script);
        output::line(String::from_utf8_lossy(&script).trim_end())?;
        Ok(Exit::OK)
    }
}
