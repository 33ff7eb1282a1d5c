//! The commands, a file or a folder for each.

mod bench;
mod completions;
mod doctor;
mod ls;
mod man;
mod release;
pub(crate) mod run;
mod show;
mod top;
mod why_waiting;

use clap::Subcommand;

use crate::connection::Connection;
use crate::exit::{Exit, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Run),
    Ls(ls::Ls),
    Show(show::Show),
    WhyWaiting(why_waiting::WhyWaiting),
    Top(top::Top),
    Release(release::Release),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    /// Whether signals end it as they end any process. The others handle them.
    pub(crate) fn leaves_signals_alone(&self) -> bool {
        use Command::{Bench, Doctor, Run, Top};
        !matches!(self, Run(_) | Top(_) | Bench(_) | Doctor(_))
    }

    /// `program` makes the whole command line, of which this is one command.
    pub(crate) fn run(
        &self,
        connection: &Connection,
        program: fn() -> clap::Command,
    ) -> Result<Exit, Failure> {
        match self {
            Command::Run(run) => run.run(connection),
            Command::Ls(ls) => ls.run(connection),
            Command::Show(show) => show.run(connection),
            Command::WhyWaiting(why_waiting) => why_waiting.run(connection),
            Command::Top(top) => top.run(connection),
            Command::Release(release) => release.run(connection),
            Command::Doctor(doctor) => doctor.run(connection),
            Command::Bench(bench) => bench.run(connection),
            Command::Completions(completions) => completions.run(program()),
            Command::Man(man) => man.run(program()),
        }
    }
}
