//! The part of Redis that runs commands and scripts, one at a time, over a keyspace.

use std::collections::HashMap;
use std::sync::Arc;

use mlua::{
    Either, Function, IntoLua, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table,
    Value as LuaValue,
};
use parking_lot::Mutex;
use redis::Value;

use super::keyspace::{Answer, Bytes, Keyspace, wrong_number};
use super::packing;
use crate::script;
#[cfg(any(all(test, feature = "memory"), fuzzing))]
use crate::script::{Call, CallerId, Form, Reply};

/// An interpreter that keeps nothing between calls but compiled scripts.
pub(crate) struct Server {
    lua: Lua,
    environment: Table,
    /// By their digest, as EVALSHA names them.
    scripts: HashMap<String, Function>,
    /// Shared with the functions that scripts call.
    state: Arc<Mutex<State>>,
}

/// What commands see.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) keyspace: Keyspace,
    /// In µs. It stands still while a script runs, and all of a script sees the same keys.
    now: u64,
    /// How many listen on each channel.
    pub(crate) listeners: HashMap<Bytes, usize>,
    published: Vec<Message>,
    sweep_at: usize,
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
}

impl Server {
    pub(crate) fn new() -> Server {
        Server::with_scripts(&str::to_owned)
    }

    /// The scripts as `alter` makes them of the shipped ones, by whose digests they are called.
    pub(crate) fn with_scripts(alter: &dyn Fn(&str) -> String) -> Server {
        let state = Arc::new(Mutex::new(State::default()));
        // Building the interpreter fails only without memory, of which an allocation does not tell either.
        let (lua, environment) =
            interpreter(&state).expect("an interpreter needs nothing but memory");
        let mut server = Server {
            lua,
            environment,
            scripts: HashMap::new(),
            state,
        };
        // So that the first request is not spent on making a script known.
        for source in script::sources() {
            let altered = server.compile(&alter(source)).expect("the scripts are Lua");
            let script = server.scripts[&altered].clone();
            server
                .scripts
                .insert(redis::Script::new(source).get_hash().to_owned(), script);
        }
        server
    }

    /// Runs one command at a server's time in µs. What it published is in [`Server::published`] then.
    pub(crate) fn run(&mut self, now: u64, command: &[Bytes]) -> Answer {
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
                .map_err(|refusal| match refusal {
                    Refusal::Unknown => {
                        format!("ERR unknown command '{}'", String::from_utf8_lossy(name))
                    }
                    Refusal::WrongNumber => wrong_number(upper),
                    Refusal::Own(error) => error,
                }),
        }
    }

    /// Puts a call as a manager does, and reads the reply.
    #[cfg(any(all(test, feature = "memory"), fuzzing))]
    pub(crate) fn put(
        &mut self,
        now: u64,
        call: &Call,
        caller_id: &CallerId,
        not_after: u64,
    ) -> Result<Reply, String> {
        let command = call.command(caller_id, Form::default(), not_after);
        let value = self.run(now, &super::words_of(&command))?;
        Reply::parse(call, &value).map_err(|malformed| malformed.to_string())
    }

    /// What was published since this was last asked.
    pub(crate) fn published(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.state.lock().published)
    }

    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes a script known, and answers its digest.
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

    fn call(&self, sha: &str, count: &Bytes, rest: &[Bytes]) -> Answer {
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
            Err(error) => Err(told(&error, sha)),
        }
    }
}

impl State {
    /// Drops the keys whose time is over, once there are twice as many keys as the last time left.
    pub(super) fn sweep(&mut self, now: u64) {
        if self.keyspace.len() > self.sweep_at {
            self.keyspace.sweep((now / 1000) as i64);
            self.sweep_at = 1024 + 2 * self.keyspace.len();
        }
    }

    fn run(&mut self, name: &str, args: &[Bytes]) -> Result<Value, Refusal> {
        let arity = match name {
            "TIME" => 1,
            "PUBLISH" => 3,
            _ => Keyspace::arity(name).ok_or(Refusal::Unknown)?,
        };
        let words = i8::try_from(args.len() + 1).unwrap_or(i8::MAX);
        if if arity < 0 {
            words < -arity
        } else {
            words != arity
        } {
            return Err(Refusal::WrongNumber);
        }
        match name {
            "TIME" => {
                let part = |n: u64| Value::BulkString(n.to_string().into_bytes());
                Ok(Value::Array(vec![
                    part(self.now / 1_000_000),
                    part(self.now % 1_000_000),
                ]))
            }
            "PUBLISH" => {
                let listeners = self.listeners.get(&args[0]).copied().unwrap_or(0);
                self.published.push(Message {
                    channel: args[0].clone(),
                    text: args[1].clone(),
                });
                Ok(Value::Int(listeners as i64))
            }
            _ => self
                .keyspace
                .run((self.now / 1000) as i64, name, args)
                .map_err(Refusal::Own),
        }
    }
}

/// Why a command did not run. What Redis says to it depends on who asked.
enum Refusal {
    Unknown,
    WrongNumber,
    /// The command's own error.
    Own(String),
}

fn interpreter(state: &Arc<Mutex<State>>) -> mlua::Result<(Lua, Table)> {
    let lua = Lua::new_with(
        StdLib::STRING | StdLib::TABLE | StdLib::MATH,
        LuaOptions::default(),
    )?;
    let redis = lua.create_table()?;
    let of_call = Arc::clone(state);
    redis.set(
        "call",
        lua.create_function(
            move |lua, args: MultiValue| match command(&of_call, args)? {
                Ok(value) => to_lua(lua, &value),
                Err(message) => {
                    let line = lua
                        .inspect_stack(1, |caller| caller.current_line())
                        .flatten();
                    Err(mlua::Error::external(Refused {
                        message,
                        line: line.unwrap_or(0),
                    }))
                }
            },
        )?,
    )?;
    let of_pcall = Arc::clone(state);
    redis.set(
        "pcall",
        lua.create_function(
            move |lua, args: MultiValue| match command(&of_pcall, args)? {
                Ok(value) => to_lua(lua, &value),
                Err(message) => Ok(LuaValue::Table(lua.create_table_from([("err", message)])?)),
            },
        )?,
    )?;
    lua.globals().set("redis", redis)?;
    lua.globals().set("struct", packing::library(&lua)?)?;
    let environment = lua.load(include_str!("sandbox.lua")).eval()?;
    Ok((lua, environment))
}

/// A command's refusal on its way through a script.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refused {
    message: String,
    line: usize,
}

/// Runs what a script asks for. The outer error is the store's own: it does not know what Redis would do.
fn command(state: &Mutex<State>, args: MultiValue) -> mlua::Result<Answer> {
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        words.push(match arg {
            LuaValue::String(text) => text.as_bytes().to_vec(),
            LuaValue::Integer(n) => n.to_string().into_bytes(),
            // Redis writes it with 17 digits, which is another text for what is not whole.
            LuaValue::Number(n) => {
                return Err(mlua::Error::runtime(format!(
                    "{n} as an argument is not supported here"
                )));
            }
            _ => {
                return Ok(Err(
                    "ERR Lua redis lib command arguments must be strings or integers".to_owned(),
                ));
            }
        });
    }
    let Some((name, args)) = words.split_first() else {
        return Ok(Err(
            "ERR Please specify at least one argument for this redis lib call".to_owned(),
        ));
    };
    Ok(state
        .lock()
        .run(&upper(name), args)
        .map_err(|refusal| match refusal {
            Refusal::Unknown => "ERR Unknown Redis command called from script".to_owned(),
            Refusal::WrongNumber => {
                "ERR Wrong number of args calling Redis command from script".to_owned()
            }
            Refusal::Own(error) => error,
        }))
}

fn upper(name: &Bytes) -> String {
    String::from_utf8_lossy(name).to_ascii_uppercase()
}

/// What a script failed of, in Redis's words.
fn told(error: &mlua::Error, sha: &str) -> String {
    if let Some(Refused { message, line }) = error.downcast_ref() {
        return format!("{message} script: {sha}, on @user_script:{line}.");
    }
    let mut cause = error;
    while let mlua::Error::CallbackError { cause: inner, .. } = cause {
        cause = inner;
    }
    let text = match cause {
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    // The rest is a traceback.
    let text = text.lines().next().unwrap_or_default();
    let line = text
        .strip_prefix("user_script:")
        .and_then(|rest| rest.split(':').next())
        .unwrap_or("0");
    format!("ERR {text} script: {sha}, on @user_script:{line}.")
}

/// A reply as a script sees it.
fn to_lua(lua: &Lua, value: &Value) -> mlua::Result<LuaValue> {
    match value {
        Value::Int(n) => Ok(LuaValue::Number(*n as f64)),
        Value::Array(values) => lua
            .create_sequence_from(values.iter().map(element))
            .map(LuaValue::Table),
        other => element(other).into_lua(lua),
    }
}

/// Text, bytes that are none, or nothing at all. What is passed as a `&str` costs a script's caller least.
type Element<'a> = Either<&'a str, Either<LuaBytes<'a>, bool>>;

fn element(value: &Value) -> Element<'_> {
    match value {
        Value::BulkString(bytes) => text(bytes),
        // No command answers anything else in a list.
        _ => Either::Right(Either::Right(false)),
    }
}

fn text(bytes: &Bytes) -> Element<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Either::Left(text),
        Err(_) => Either::Right(Either::Left(LuaBytes(bytes))),
    }
}

struct LuaBytes<'a>(&'a [u8]);

impl IntoLua for LuaBytes<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<LuaValue> {
        lua.create_string(self.0).map(LuaValue::String)
    }
}

/// What a script returns, as a reply.
fn from_lua(value: LuaValue) -> Answer {
    Ok(match value {
        LuaValue::Integer(n) => Value::Int(n),
        // Redis cuts off what is behind the point.
        LuaValue::Number(n) => Value::Int(n as i64),
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => return from_table(&table),
        _ => Value::Nil,
    })
}

fn from_table(table: &Table) -> Answer {
    if let Ok(Some(error)) = table.raw_get::<Option<LuaString>>("err") {
        return Err(error.to_string_lossy());
    }
    if let Ok(Some(status)) = table.raw_get::<Option<LuaString>>("ok") {
        return Ok(Value::SimpleString(status.to_string_lossy()));
    }
    // An array ends before its first nil.
    let values = (1..).map_while(|i| {
        table
            .raw_get(i)
            .ok()
            .filter(|value| !matches!(value, LuaValue::Nil))
    });
    values
        .map(from_lua)
        .collect::<Result<_, _>>()
        .map(Value::Array)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn run(server: &mut Server, now_ms: u64, command: &str) -> Value {
        let words: Vec<Bytes> = command
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        server.run(now_ms * 1000, &words).unwrap()
    }

    #[test]
    fn worlds_can_be_copied_compared_and_put_back() {
        let mut server = Server::new();
        run(&mut server, 1, "HSET k a 1");
        run(&mut server, 1, "RPUSH q x y");
        let before = server.state().keyspace.clone();
        run(&mut server, 1, "HSET k b 2");
        run(&mut server, 1, "LPOP q");
        let after = std::mem::replace(&mut server.state().keyspace, before.clone());
        assert!(before != after);
        // The same again, from the same.
        run(&mut server, 2, "LPOP q");
        run(&mut server, 2, "HSET k b 2");
        let again = server.state().keyspace.clone();
        assert!(again == after);
        assert_eq!(HashSet::from([before, after, again]).len(), 2);
    }

    #[test]
    fn keys_whose_time_is_over_do_not_pile_up() {
        let mut server = Server::new();
        for i in 0..100_000 {
            run(&mut server, i, &format!("HSET k{i} a 1"));
            run(&mut server, i, &format!("PEXPIREAT k{i} {}", i + 100));
            server.state().sweep(i * 1000);
        }
        assert!(server.state().keyspace.len() < 2000);
    }
}
