//! The part of Redis's Lua library `struct` that the scripts use: numbers of a fixed size, one
//! after the other, the least byte first.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

/// One letter of a format.
#[derive(Clone, Copy)]
enum FormatItem {
    /// `d`
    Double,
    /// `I4`
    Word,
    /// `b`
    Byte,
}

impl FormatItem {
    fn size(self) -> usize {
        match self {
            FormatItem::Double => 8,
            FormatItem::Word => 4,
            FormatItem::Byte => 1,
        }
    }

    fn pack(self, number: f64, into: &mut Vec<u8>) {
        match self {
            FormatItem::Double => into.extend(number.to_le_bytes()),
            // A number that does not fit loses its upper bits, just as a cast in C.
            FormatItem::Word => into.extend((number as i64 as u32).to_le_bytes()),
            FormatItem::Byte => into.push(number as i64 as u8),
        }
    }

    /// `None` if there are too few bytes.
    fn unpack(self, bytes: &[u8]) -> Option<f64> {
        Some(match self {
            FormatItem::Double => f64::from_le_bytes(bytes.first_chunk().copied()?),
            FormatItem::Word => u32::from_le_bytes(bytes.first_chunk().copied()?).into(),
            FormatItem::Byte => i8::from_le_bytes(bytes.first_chunk().copied()?).into(),
        })
    }
}

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let pack = |lua: &Lua, (format, numbers): (LuaString, MultiValue)| {
        let mut packed = Vec::new();
        let mut numbers = numbers.into_iter();
        for item in items(&format)? {
            // A number may also come as text.
            let number = lua.coerce_number(numbers.next().unwrap_or(Value::Nil))?;
            item.pack(
                number.ok_or_else(|| {
                    mlua::Error::runtime("bad argument to 'pack' (number expected)")
                })?,
                &mut packed,
            );
        }
        lua.create_string(packed)
    };
    let unpack = |_: &Lua, (format, packed): (LuaString, LuaString)| {
        let packed = packed.as_bytes();
        let mut numbers = MultiValue::new();
        let mut at = 0;
        for item in items(&format)? {
            let number = packed.get(at..).and_then(|rest| item.unpack(rest));
            let short =
                || mlua::Error::runtime("bad argument #2 to 'unpack' (data string too short)");
            numbers.push_back(Value::Number(number.ok_or_else(short)?));
            at += item.size();
        }
        numbers.push_back(Value::Number((at + 1) as f64));
        Ok(numbers)
    };
    library.set("pack", lua.create_function(pack)?)?;
    library.set("unpack", lua.create_function(unpack)?)?;
    Ok(library)
}

/// An error is about this store itself: it does not know what Redis would do.
fn items(format: &LuaString) -> mlua::Result<Vec<FormatItem>> {
    let format = format.to_str()?;
    let unknown =
        || mlua::Error::runtime(format!("the format {:?} is not supported here", &*format));
    let mut letters = format.strip_prefix('<').ok_or_else(unknown)?.chars();
    let mut items = Vec::new();
    while let Some(letter) = letters.next() {
        items.push(match letter {
            'd' => FormatItem::Double,
            'I' if letters.next() == Some('4') => FormatItem::Word,
            'b' => FormatItem::Byte,
            _ => return Err(unknown()),
        });
    }
    Ok(items)
}
