//! `fairlock completions`: the completion script of a shell.

use clap::{Args, Command};
use clap_complete::Shell;

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
        clap_complete::generate(self.shell, &mut program, "fairlock", &mut script);
        let script = String::from_utf8_lossy(&script);
        let script = script.trim_end();
        match self.shell {
            Shell::Bash => output::line(format_args!("{script}\n{AFTER_DASHES_IN_BASH}"))?,
            Shell::Fish => output::line(format_args!("{script}\n{AFTER_DASHES_IN_FISH}"))?,
            Shell::Zsh => {
                // Zsh runs the file as the function that it names, the first time.
                let (functions, entry) = script.split_at(script.rfind("\nif ").unwrap_or(0));
                let entry = entry.replace("_fairlock \"$@\"", "_fairlock_or_command \"$@\"");
                let entry = entry.replace("compdef _fairlock ", "compdef _fairlock_or_command ");
                output::line(format_args!("{functions}{AFTER_DASHES_IN_ZSH}\n{entry}"))?;
            }
            _ => output::line(script)?,
        }
        Ok(Exit::OK)
    }
}

/// Behind `--` comes the command of `run`, which the script of clap does not know. So what would be
/// completed for that command alone is completed here.
const AFTER_DASHES_IN_BASH: &str = r#"
_fairlock_or_command() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset "$((at + 1))"
        elif ((COMP_CWORD == at + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            COMPREPLY=()
        fi
        return
    done
    _fairlock "$@"
}
complete -F _fairlock_or_command -o bashdefault -o default fairlock"#;

const AFTER_DASHES_IN_ZSH: &str = r#"
_fairlock_or_command() {
    local -i at=${words[(i)--]}
    if ((at < CURRENT)); then
        shift at words
        ((CURRENT -= at))
        _normal
    else
        _fairlock "$@"
    fi
}"#;

const AFTER_DASHES_IN_FISH: &str = r#"
function __fairlock_command
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words)
    complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-2]) $words[-1])
end
complete -c fairlock -f -n 'contains -- -- (commandline -opc)' -a '(__fairlock_command)'"#;
