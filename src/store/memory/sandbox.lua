-- Removes every place where a script could leave something behind, just as Redis does. Returns the environment of
-- scripts. To read or to set a global that does not exist is an error.
local globals = _G
local function refuse() error('Attempt to modify a readonly table', 2) end

for _, name in ipairs({ 'redis', 'string', 'table', 'math', 'struct' }) do
  globals[name] = setmetatable({}, { __index = globals[name], __newindex = refuse })
end
local protect = setmetatable
for _, name in ipairs({ '_G', 'collectgarbage', 'dofile', 'getfenv', 'getmetatable', 'loadfile', 'newproxy', 'print',
                        'rawset', 'setfenv' }) do
  globals[name] = nil
end
protect(globals, { __index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end })
return protect({}, { __index = globals, __newindex = refuse })
