//! The Lua interpreter that runs scripts, and how values pass into it and out of it.

use std::sync::Arc;

use mlua::{
    Either, IntoLua, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value as LuaValue,
};
use parking_lot::Mutex;
use redis::Value;

use super::keyspace::{Bytes, CommandResult};
use super::packing;
use super::server_state::{CommandError, ServerState, upper};
use crate::script::sha1_hex;

/// An interpreter whose scripts run commands on this state, and the environment of the scripts.
pub(super) fn interpreter(state: &Arc<Mutex<ServerState>>) -> mlua::Result<(Lua, Table)> {
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
                    Err(mlua::Error::external(ScriptError {
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
    let sha1 = |_: &Lua, text: LuaString| Ok(sha1_hex(&text.to_string_lossy()));
    redis.set("sha1hex", lua.create_function(sha1)?)?;
    lua.globals().set("redis", redis)?;
    lua.globals().set("struct", packing::library(&lua)?)?;
    let environment = lua.load(include_str!("sandbox.lua")).eval()?;
    Ok((lua, environment))
}

/// A command's error on its way through a script.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct ScriptError {
    message: String,
    line: usize,
}

/// Runs a command for a script. The outer error is about this store itself: it does not know what
/// Redis would do.
fn command(state: &Mutex<ServerState>, args: MultiValue) -> mlua::Result<CommandResult> {
    let mut words = Vec::with_capacity(args.len());
    for arg in args {
        words.push(match arg {
            LuaValue::String(text) => text.as_bytes().to_vec(),
            LuaValue::Integer(n) => n.to_string().into_bytes(),
            // Redis writes it with 17 digits, which is another text for a number that is not whole.
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
        .map_err(|error| match error {
            CommandError::Unknown => "ERR Unknown Redis command called from script".to_owned(),
            CommandError::WrongArity => {
                "ERR Wrong number of args calling Redis command from script".to_owned()
            }
            CommandError::Own(error) => error,
        }))
}

/// Why a script failed, in Redis's words.
pub(super) fn error_text(error: &mlua::Error, sha: &str) -> String {
    if let Some(ScriptError { message, line }) = error.downcast_ref() {
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
        // A page of HSCAN: where the next begins, and the fields.
        Value::Array(values) if matches!(values.last(), Some(Value::Array(_))) => {
            let parts = values.iter().map(|value| to_lua(lua, value));
            lua.create_sequence_from(parts.collect::<mlua::Result<Vec<_>>>()?)
                .map(LuaValue::Table)
        }
        Value::Array(values) => lua
            .create_sequence_from(values.iter().map(element))
            .map(LuaValue::Table),
        other => element(other).into_lua(lua),
    }
}

/// A text, bytes that are not UTF-8, or nothing. A `&str` is the cheapest to pass to a script.
pub(super) type Element<'a> = Either<&'a str, Either<LuaBytes<'a>, bool>>;

fn element(value: &Value) -> Element<'_> {
    match value {
        Value::BulkString(bytes) => text(bytes),
        // No command replies with anything else in a list.
        _ => Either::Right(Either::Right(false)),
    }
}

pub(super) fn text(bytes: &Bytes) -> Element<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Either::Left(text),
        Err(_) => Either::Right(Either::Left(LuaBytes(bytes))),
    }
}

pub(super) struct LuaBytes<'a>(&'a [u8]);

impl IntoLua for LuaBytes<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<LuaValue> {
        lua.create_string(self.0).map(LuaValue::String)
    }
}

/// A script's return value as a reply.
pub(super) fn from_lua(value: LuaValue) -> CommandResult {
    Ok(match value {
        LuaValue::Integer(n) => Value::Int(n),
        // Redis cuts off the digits behind the point.
        LuaValue::Number(n) => Value::Int(n as i64),
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => return from_table(&table),
        _ => Value::Nil,
    })
}

fn from_table(table: &Table) -> CommandResult {
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
