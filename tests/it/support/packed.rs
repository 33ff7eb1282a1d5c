//! The numbers that a record packs in the fields `s`, `q` and `b`, each under the name that
//! docs/PROTOCOL.md gives it. Scripts read and write them, so that this works on every store.

/// A number's name, its offset, and its format letter for `struct`.
type Items = &'static [(&'static str, usize, &'static str)];

const STATE: Items = &[
    ("e", 0, "d"),
    ("g", 8, "d"),
    ("f", 16, "d"),
    ("x", 24, "d"),
    ("t", 32, "I4"),
    ("ttl", 36, "I4"),
    ("hold", 40, "I4"),
    ("d", 44, "b"),
    ("y", 45, "b"),
];
const QUEUE: Items = &[
    ("n", 0, "I4"),
    ("r", 4, "I4"),
    ("s", 8, "d"),
    ("v", 16, "d"),
    ("q", 24, "d"),
    ("h", 32, "d"),
    ("tq", 40, "I4"),
];
/// ARGV: field, offset in it, pack format (or nothing), value, and so on.
pub(crate) const SET: &str = "
    local new = { s = string.rep('\\0', 44) .. '\\255\\255', q = string.rep('\\0', 44) }
    for i = 1, #ARGV, 4 do
      local field, at, format, value = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3]
      if format ~= '' then
        local packed = redis.call('HGET', KEYS[1], field) or new[field] or string.rep('\\0', 16)
        local number = struct.pack(format, value)
        value = string.sub(packed, 1, at) .. number .. string.sub(packed, at + #number + 1)
      end
      redis.call('HSET', KEYS[1], field, value)
    end
    return 1";

/// The arguments of [`SET`] for one field and its value.
pub(crate) fn words(field: &str, value: &str) -> Vec<String> {
    // `until since`
    if field.starts_with("m:")
        && let Some((until, since)) = value.split_once(' ')
    {
        let number = |at: &str, n: &str| [field, at, "<d", n].map(str::to_owned);
        return [number("0", until), number("8", since)].concat();
    }
    for (packed, items) in [("s", STATE), ("q", QUEUE)] {
        if let Some((_, at, format)) = items.iter().find(|(name, ..)| *name == field) {
            return vec![
                packed.to_owned(),
                at.to_string(),
                format!("<{format}"),
                value.to_owned(),
            ];
        }
    }
    [field, "0", "", value].map(str::to_owned).to_vec()
}

/// All fields of a hash as text, each after its name. Numbers that mean "none" are left out.
pub(crate) const LOOK: &str = "
    local packed = { s = { '<ddddI4I4I4bb', 'e', 'g', 'f', 'x', 't', 'ttl', 'hold', 'd', 'y' },
                     q = { '<I4I4ddddI4', 'n', 'r', 's', 'v', 'q', 'h', 'tq' },
                     b = { '<dd', 'bf', 'bt' } }
    local all, seen = redis.call('HGETALL', KEYS[1]), {}
    for i = 1, #all, 2 do
      local field, value = all[i], all[i + 1]
      if packed[field] then
        local numbers = { struct.unpack(packed[field][1], value) }
        for at = 2, #packed[field] do
          local name, number = packed[field][at], numbers[at - 1]
          if number ~= -1 and not (name == 'e' and number == 0) then
            seen[#seen + 1] = name
            seen[#seen + 1] = string.format('%.0f', number)
          end
        end
      else
        if string.find(field, '^m:') then value = string.format('%.0f %.0f', struct.unpack('<dd', value)) end
        if field == 'z' then
          local ends = {}
          for at = 1, #value, 8 do
            ends[#ends + 1] = string.format('%.0f', (struct.unpack('<d', string.sub(value, at))))
          end
          value = table.concat(ends, ' ')
        end
        seen[#seen + 1] = field
        seen[#seen + 1] = value
      end
    end
    return seen";
