-- Runs the steps of a change whose checks still hold, and writes an audit entry.
-- KEYS: the stream; the audit stream, if it is on this server.
-- ARGV: the steps, then the command that writes the audit entry (without words: none), to which two counts are added.
-- Every list comes after its length. A step is a list of commands and a list of checks. A command is a list of words. A
-- check is a command that reads, a shape, a row's name, a list of fields with their values, and a list of fields that are
-- ids, each with its lowest and highest value.
-- Returns a row for each step and one for the audit entry: its outcome, and the details.
local at = 0

local function word()
  at = at + 1
  return ARGV[at]
end

local function number()
  return tonumber(word())
end

local function command()
  local words = {}
  for i = 1, number() do words[i] = word() end
  return words
end

local function check()
  local one = {read = command(), shape = word(), row = word(), fields = {}, between = {}}
  for i = 1, number() do one.fields[i] = {word(), word()} end
  for i = 1, number() do one.between[i] = {word(), word(), word()} end
  return one
end

local function text(value)
  if value == nil or value == false then return '' end
  if type(value) == 'number' then return string.format('%.0f', value) end
  if type(value) == 'table' then return value.ok or value.err or '' end
  return value
end

local function facts(row)
  local found = {}
  for i = 1, #row, 2 do found[row[i]] = row[i + 1] end
  return found
end

-- Returns a fact's present value; '-' without such a row.
local function found(one, reply, name)
  if one.shape == 'value' then return text(reply) end
  if one.shape == 'first' then
    if #reply == 0 then return '-' end
    return text(reply[1][tonumber(name)])
  end
  if one.shape == 'map' then return text(facts(reply)[name]) end
  for _, row in ipairs(reply) do
    local here = facts(row)
    if here.name == one.row then return text(here[name]) end
  end
  return '-'
end

-- Returns true if the first id is lower. Lua's numbers keep 53 of an id part's 64 bits, so digits are compared.
local function before(left, right)
  local parts = {left:match('^(%d+)%-(%d+)$')}
  for i, other in ipairs({right:match('^(%d+)%-(%d+)$')}) do
    local one = parts[i]
    if #one ~= #other then return #one < #other end
    if one ~= other then return one < other end
  end
  return false
end

-- Returns nil if all checks hold; else the first that fails: its number, the fact and its present value, or the error.
local function moved(checks)
  for i, one in ipairs(checks) do
    local reply = redis.pcall(unpack(one.read))
    if type(reply) == 'table' and reply.err then return {'refused', tostring(i), reply.err} end
    for _, pair in ipairs(one.fields) do
      local now = found(one, reply, pair[1])
      if now ~= pair[2] then return {'moved', tostring(i), pair[1], now} end
    end
    for _, ids in ipairs(one.between) do
      local now = found(one, reply, ids[1])
      if now == '-' or before(now, ids[2]) or (ids[3] ~= '' and before(ids[3], now)) then
        return {'moved', tostring(i), ids[1], now}
      end
    end
  end
end

local function run(commands)
  local count = ''
  for i, words in ipairs(commands) do
    local reply = redis.pcall(unpack(words))
    if type(reply) == 'table' and reply.err then return {'failed', tostring(i), reply.err} end
    count = type(reply) == 'table' and not reply.ok and tostring(#reply) or text(reply)
  end
  return {'done', count}
end

local results, done = {}, 0
for i = 1, number() do
  local commands, checks = {}, {}
  for j = 1, number() do commands[j] = command() end
  for j = 1, number() do checks[j] = check() end
  results[i] = moved(checks) or run(commands)
  if results[i][1] == 'done' then done = done + 1 end
end

local audit = command()
if #audit == 0 or done == 0 then
  results[#results + 1] = {'none'}
else
  audit[#audit + 1] = 'done'
  audit[#audit + 1] = tostring(done)
  audit[#audit + 1] = 'moved'
  audit[#audit + 1] = tostring(#results - done)
  local reply = redis.pcall(unpack(audit))
  if type(reply) == 'table' and reply.err then
    results[#results + 1] = {'failed', reply.err}
  else
    results[#results + 1] = {'done', reply}
  end
end
return results
