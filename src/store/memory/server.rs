//! The part of a Redis server that runs commands and scripts, one at a time, over a keyspace.

#[cfg(any(all(test, feature = "memory"), fairlock_fuzzing))]
#[path = "../../../tests/sim/server_access.rs"]
mod server_access;

use std::collections::HashMap;
use std::sync::Arc;

use mlua::{Function, Lua, Table, Value as LuaValue};
use parking_lot::{Mutex, MutexGuard};

use super::interpreter::{error_text, from_lua, interpreter, text};
use super::keyspace::{Bytes, CommandResult, wrong_number};
use super::server_state::{CommandError, PublishedMessage, ServerState, upper};
use crate::script;

/// An interpreter that keeps nothing between calls but compiled scripts.
pub(crate) struct ScriptServer {
    lua: Lua,
    environment: Table,
    /// By their digest, as EVALSHA names them.
    scripts: HashMap<String, Function>,
    /// Shared with the functions that scripts call.
    state: Arc<Mutex<ServerState>>,
}

impl ScriptServer {
    pub(crate) fn new() -> ScriptServer {
        ScriptServer::with_scripts(&str::to_owned)
    }

    /// A server whose scripts are what `alter` makes of the shipped ones. They are called by the
    /// digests of the shipped ones.
    pub(crate) fn with_scripts(alter: &dyn Fn(&str) -> String) -> ScriptServer {
        let state = Arc::new(Mutex::new(ServerState::default()));
        // Building the interpreter fails only if memory runs out, and then an allocation would not
        // return an error either.
        let (lua, environment) =
            interpreter(&state).expect("an interpreter needs nothing but memory");
        let mut server = ScriptServer {
            lua,
            environment,
            scripts: HashMap::new(),
            state,
        };
        // Compiled here, so that the first request does not have to send the source.
        for source in script::sources() {
            let altered = server.compile(&alter(source)).expect("the scripts are Lua");
            let script = server.scripts[&altered].clone();
            server
                .scripts
                .insert(redis::Script::new(source).get_hash().to_owned(), script);
        }
        server
    }

    /// Runs one command at a server's time in µs. [`ScriptServer::published`] has its messages then.
    pub(crate) fn run(&mut self, now: u64, command: &[Bytes]) -> CommandResult {
        self.state.lock().now = now;
        let Some((name, args)) = command.split_first() else {
            return Err("ERR no command".to_owned());
        };
        match (upper(name).as_str(), args) {
            ("EVAL", [source, count, rest @ ..]) => {
                let sha = self.compile(&String::from_utf8_lossy(source))?;
                self.call(&sha, count, rest)
            }
            ("EVALSHA", [sha, count, rest @ ..]) => {
                self.call(&String::from_utf8_lossy(sha), count, rest)
            }
            (name @ ("EVAL" | "EVALSHA"), _) => Err(wrong_number(name)),
            (upper, args) => self
                .state
                .lock()
                .run(upper, args)
                .map_err(|error| match error {
                    CommandError::Unknown => {
                        format!("ERR unknown command '{}'", String::from_utf8_lossy(name))
                    }
                    CommandError::WrongArity => wrong_number(upper),
                    CommandError::Own(error) => error,
                }),
        }
    }

    /// The messages that were published since the last call of this.
    pub(crate) fn published(&mut self) -> Vec<PublishedMessage> {
        std::mem::take(&mut self.state.lock().published)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock()
    }

    /// Compiles a script, and returns its digest.
    fn compile(&mut self, source: &str) -> Result<String, String> {
        let sha = redis::Script::new(source).get_hash().to_owned();
        if !self.scripts.contains_key(&sha) {
            let script = self
                .lua
                .load(source)
                .set_name("@user_script")
                .set_environment(self.environment.clone())
                .into_function();
            let script = script.map_err(|error| match error {
                mlua::Error::SyntaxError { message, .. } => {
                    format!("ERR Error compiling script (new function): {message}")
                }
                other => format!("ERR {other}"),
            })?;
            self.scripts.insert(sha.clone(), script);
        }
        Ok(sha)
    }

    /// Runs a compiled script with this number of keys.
    fn call(&self, sha: &str, count: &Bytes, rest: &[Bytes]) -> CommandResult {
        let count = std::str::from_utf8(count).ok().and_then(|n| n.parse().ok());
        let count: usize = count.ok_or("ERR value is not an integer or out of range")?;
        if count > rest.len() {
            return Err("ERR Number of keys can't be greater than number of args".to_owned());
        }
        let script = self
            .scripts
            .get(sha)
            .ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
        let (keys, args) = rest.split_at(count);
        let globals = self.lua.globals();
        let run = || -> mlua::Result<LuaValue> {
            globals.raw_set(
                "KEYS",
                self.lua.create_sequence_from(keys.iter().map(text))?,
            )?;
            globals.raw_set(
                "ARGV",
                self.lua.create_sequence_from(args.iter().map(text))?,
            )?;
            script.call(())
        };
        match run() {
            Ok(value) => from_lua(value),
            Err(error) => Err(error_text(&error, sha)),
        }
    }
}

/// The words of a command as the server reads them.
pub(super) fn bytes_of(words: &[&str]) -> Vec<Bytes> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// The words of a command, its name included.
pub(crate) fn words_of(command: &redis::Cmd) -> Vec<Bytes> {
    let word = |arg| match arg {
        redis::Arg::Simple(word) => Some(<[u8]>::to_vec(word)),
        _ => None,
    };
    command.args_iter().filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use redis::Value;

    use super::*;

    fn run(server: &mut ScriptServer, now_ms: u64, command: &str) -> Value {
        let words: Vec<Bytes> = command
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        server.run(now_ms * 1000, &words).unwrap()
    }

    #[test]
    fn keyspaces_can_be_copied_compared_and_restored() {
        let mut server = ScriptServer::new();
        run(&mut server, 1, "HSET k a 1");
        run(&mut server, 1, "RPUSH q x y");
        let before = server.state().keyspace.clone();
        run(&mut server, 1, "HSET k b 2");
        run(&mut server, 1, "LPOP q");
        let after = std::mem::replace(&mut server.state().keyspace, before.clone());
        assert!(before != after);
        // The same changes again, from the same keys.
        run(&mut server, 2, "LPOP q");
        run(&mut server, 2, "HSET k b 2");
        let again = server.state().keyspace.clone();
        assert!(again == after);
        assert_eq!(HashSet::from([before, after, again]).len(), 2);
    }

    #[test]
    fn expired_keys_do_not_pile_up() {
        let mut server = ScriptServer::new();
        for i in 0..100_000 {
            run(&mut server, i, &format!("HSET k{i} a 1"));
            run(&mut server, i, &format!("PEXPIREAT k{i} {}", i + 100));
            server.state().sweep(i * 1000);
        }
        assert!(server.state().keyspace.len() < 2000);
    }
}
