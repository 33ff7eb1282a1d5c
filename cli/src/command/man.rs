//! `fairlock man`: the man pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, roman};

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
    pub(crate) fn run(&self, mut program: Command) -> Result<Exit, Failure> {
        program.build();
        match &self.directory {
            None => output::line(String::from_utf8_lossy(&page(&program)).trim_end())?,
            Some(directory) => write_all(&program, directory).map_err(|error| {
                Failure::usage(format!("cannot write to {}: {error}", directory.display()))
            })?,
        }
        Ok(Exit::OK)
    }
}

fn write_all(root: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for command in [root].into_iter().chain(root.get_subcommands()) {
        let name = Page::new(command.clone()).get_filename();
        fs::write(directory.join(name), page(command))?;
    }
    Ok(())
}

/// The text of a command's page, in roff.
fn page(command: &Command) -> Vec<u8> {
    // The page is the long help: it has the options that the short help leaves out.
    let command = command
        .clone()
        .mut_args(|argument| argument.hide_short_help(false));
    let rest = command.get_after_help().map(ToString::to_string);
    // The usage of the help. The page's own would begin with the connection's options, one by one.
    let usage = command.clone().render_usage().to_string();
    let command = command.override_usage(usage.trim_start_matches("Usage: ").to_owned());
    let page = Page::new(command.clone()).manual("fairlock").source("");
    let mut text = Vec::new();
    let has_subcommands = command.has_subcommands();
    // No write to memory fails.
    let _ = page
        .render_title(&mut text)
        .and_then(|()| page.render_name_section(&mut text))
        .and_then(|()| page.render_synopsis_section(&mut text))
        .and_then(|()| page.render_description_section(&mut text))
        .and_then(|()| page.render_options_section(&mut text))
        .and_then(|()| match has_subcommands {
            true => page.render_subcommands_section(&mut text),
            false => Ok(()),
        })
        .and_then(|()| further_sections(&rest.unwrap_or_default()).to_writer(&mut text));
    text
}

/// The part of the help behind the options, such as `Examples:`. A line with a colon at its end
/// begins a section. Indented lines stay as they are, since man would fill them to paragraphs.
fn further_sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_literal = false;
    for line in text.lines() {
        let is_indented = line.starts_with(' ');
        if is_indented != is_literal && !line.is_empty() {
            roff.control(if is_indented { "nf" } else { "fi" }, []);
            is_literal = is_indented;
        }
        match line.strip_suffix(':') {
            Some(heading) if !is_indented => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
            }
            _ if line.is_empty() => {
                roff.control("PP", []);
            }
            _ => {
                roff.text([roman(line)]);
            }
        }
    }
    if is_literal {
        roff.control("fi", []);
    }
    roff
}
