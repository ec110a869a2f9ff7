-- Lua 5.1's patterns with a cost that is known before and a way to end: Lua's own matcher takes a time that grows with
-- a power of the subject's length, and C stack that grows with the pattern's, and nothing can end it. Loaded once, with nothing;
-- returns the worst cost of a pattern over a subject, and a matcher written in Lua, in which the clock is
-- looked at as in any Lua code. A port of lstrlib.c of Lua 5.1.5; it must find what that finds.

local byte, char, find, sub = string.byte, string.char, string.find, string.sub
local concat, error, next, type = table.concat, error, next, type
local floor, max, HUGE = math.floor, math.max, math.huge

-- Quantifiers in one pattern: each is a level of recursion
local TOO_MANY = 2000
-- Captures in one pattern, as Lua has it
local MAX_CAPTURES = 32
-- Patterns whose form is remembered
local REMEMBERED = 200
-- Steps that need not be counted
local QUICK = 2 ^ 14

---------------------------------------------------------------------- the form of a pattern

local SINGLE, OPEN, CLOSE, BALANCED, FRONTIER, BACK, FINISH, BAD = 1, 2, 3, 4, 5, 6, 7, 8

-- Where one character class ends, or nil and what is wrong with it
local function class_end(pattern, at)
  local one = sub(pattern, at, at)
  if one == '%' then
    if at == #pattern then
      return nil, "malformed pattern (ends with '%')"
    end
    return at + 2
  elseif one ~= '[' then
    return at + 1
  end
  at = sub(pattern, at + 1, at + 1) == '^' and at + 2 or at + 1
  repeat
    local here = sub(pattern, at, at)
    if here == '' then
      return nil, "malformed pattern (missing ']')"
    end
    at = here == '%' and at < #pattern and at + 2 or at + 1
  until sub(pattern, at, at) == ']'
  return at + 1
end

-- The nodes from a place on: what is wrong is said when it is reached, as Lua does
local function single(pattern, at, kind)
  local stop, wrong = class_end(pattern, at)
  if not stop then
    return { kind = BAD, text = wrong }, #pattern + 1
  end
  return { kind = kind, class = sub(pattern, at, stop - 1) }, stop
end

local function escaped(pattern, at)
  local letter = sub(pattern, at + 1, at + 1)
  if letter == 'b' then
    if at + 3 > #pattern then
      return { kind = BAD, text = 'unbalanced pattern' }, #pattern + 1
    end
    return { kind = BALANCED, from = byte(pattern, at + 2), to = byte(pattern, at + 3) }, at + 4
  elseif letter == 'f' then
    if sub(pattern, at + 2, at + 2) ~= '[' then
      return { kind = BAD, text = "missing '[' after '%f' in pattern" }, #pattern + 1
    end
    return single(pattern, at + 2, FRONTIER)
  elseif find(letter, '%d') then
    return { kind = BACK, number = byte(letter) - 48 }, at + 2
  end
end

local function node_at(pattern, at)
  local one = sub(pattern, at, at)
  if one == '(' then
    if sub(pattern, at + 1, at + 1) == ')' then
      return { kind = OPEN, is_place = true }, at + 2
    end
    return { kind = OPEN }, at + 1
  elseif one == ')' then
    return { kind = CLOSE }, at + 1
  elseif one == '$' and at == #pattern then
    return { kind = FINISH }, at + 1
  elseif one == '%' then
    local node, stop = escaped(pattern, at)
    if node then
      return node, stop
    end
  end
  local node, stop = single(pattern, at, SINGLE)
  local mark = sub(pattern, stop, stop)
  if node.kind == SINGLE and mark ~= '' and find('*+?-', mark, 1, true) then
    node.mark = mark
    stop = stop + 1
  end
  return node, stop
end

-- Whether matching can fail with an error: at a node that is wrong, or at captures that are
local function is_sound(nodes)
  local open, opened = 0, 0
  for at = 1, #nodes do
    local kind = nodes[at].kind
    if kind == OPEN then
      opened = opened + 1
      open = open + (nodes[at].is_place and 0 or 1)
    elseif kind == CLOSE then
      open = open - 1
    end
    if kind == BAD or kind == BACK or open < 0 then
      return false
    end
  end
  return open == 0 and opened <= MAX_CAPTURES
end

-- How often the subject's length is a factor of the cost, and how often 2 is
local function weigh(form)
  local nodes, powers, twos, is_last = form.nodes, 0, 0, true
  for at = #nodes, 1, -1 do
    local node = nodes[at]
    if node.mark == '?' then
      twos = twos + (is_last and 0 or 1)
    elseif node.mark or node.kind == BALANCED or node.kind == BACK then
      powers = powers + (is_last and node.mark and 0 or 1)
    end
    is_last = is_last and (node.kind == OPEN or node.kind == CLOSE)
  end
  form.powers, form.twos, form.is_sound = powers, twos, is_sound(nodes)
end

local function read(pattern, may_anchor)
  local whole = pattern
  local nul = find(pattern, '\0', 1, true) -- where C's pattern ends
  pattern = nul and sub(pattern, 1, nul - 1) or pattern
  local form = { nodes = {}, is_anchored = may_anchor and sub(pattern, 1, 1) == '^', length = #whole }
  local at, marks = form.is_anchored and 2 or 1, 0
  while at <= #pattern do
    local node
    node, at = node_at(pattern, at)
    marks = marks + ((node.mark or node.kind == OPEN or node.kind == CLOSE) and 1 or 0)
    form.nodes[#form.nodes + 1] = node
    if marks > TOO_MANY then
      form.is_too_much = true
      return form
    end
  end
  weigh(form)
  return form
end

-- The forms of patterns, and for sound ones the length of text up to which they cost nothing worth counting
local forms, count = {}, 0
local quick_length = {}

local function learn(pattern, form)
  if form.is_sound then
    local most = (QUICK / (form.length + 1) / 2 ^ form.twos) ^ (1 / max(form.powers + 1, 1))
    quick_length[pattern] = floor(most) - 1
  end
end

-- Nothing of one script's is left for the next
local function forget()
  if count == 0 then
    return
  end
  forms, count = {}, 0
  for pattern in next, quick_length do
    quick_length[pattern] = nil
  end
end

local function form_of(pattern, may_anchor)
  local key = may_anchor and pattern or '\0' .. pattern
  local form = forms[key]
  if not form then
    form = read(pattern, may_anchor)
    if #pattern < 1000 then
      if count >= REMEMBERED then
        forget()
      end
      forms[key], count = form, count + 1
      if may_anchor then
        learn(pattern, form)
      end
    end
  end
  return form
end

-- Steps that a pattern may take at most over a subject of that length
local function price(length, pattern, may_anchor)
  local form = form_of(pattern, may_anchor)
  if form.is_too_much then
    return HUGE
  end
  local powers = form.powers + (form.is_anchored and 0 or 1)
  return (form.length + 1) * max(length + 1, (length + 1) ^ powers * 2 ^ form.twos)
end

---------------------------------------------------------------------- matching

local sets = setmetatable({}, { __mode = 'v' })

-- The bytes of a class: Lua's own matcher says for each
local function set_of(class)
  local set = sets[class]
  if not set then
    set = {}
    local alone = '^' .. class .. '$'
    if #class == 1 and class ~= '.' then
      set[byte(class)] = true
    else
      for code = 0, 255 do
        set[code] = find(char(code), alone) and true or nil
      end
    end
    sets[class] = set
  end
  return set
end

local step

local function step_class(run, at, here)
  local nodes, text, length = run.nodes, run.text, run.length
  local node = nodes[at]
  local set, mark = node.set, node.mark
  if not set then
    set = set_of(node.class)
    node.set = set
  end
  if mark == '-' then
    while true do
      local stop = step(run, at + 1, here)
      if stop then
        return stop
      elseif here > length or not set[byte(text, here)] then
        return nil
      end
      here = here + 1
    end
  elseif mark == '?' then
    return here <= length and set[byte(text, here)] and step(run, at + 1, here + 1) or step(run, at + 1, here)
  end
  local least = mark == '+' and here + 1 or here
  while here <= length and set[byte(text, here)] do
    here = here + 1
  end
  for stop = here, least, -1 do
    local found = step(run, at + 1, stop)
    if found then
      return found
    end
  end
end

local function step_open(run, at, here)
  if run.level >= MAX_CAPTURES then
    error('too many captures', 0)
  end
  run.level = run.level + 1
  run.from[run.level], run.to[run.level] = here, run.nodes[at].is_place and 'place' or 'open'
  local stop = step(run, at + 1, here)
  if not stop then
    run.level = run.level - 1
  end
  return stop
end

local function step_close(run, at, here)
  for level = run.level, 1, -1 do
    if run.to[level] == 'open' then
      run.to[level] = here - 1
      local stop = step(run, at + 1, here)
      if not stop then
        run.to[level] = 'open'
      end
      return stop
    end
  end
  error('invalid pattern capture', 0)
end

local function balanced(run, node, here)
  local text, from, to = run.text, node.from, node.to
  if byte(text, here) ~= from then
    return nil
  end
  local depth = 1
  for at = here + 1, run.length do
    local code = byte(text, at)
    if code == to then
      depth = depth - 1
      if depth == 0 then
        return at + 1
      end
    elseif code == from then
      depth = depth + 1
    end
  end
end

local function frontier(run, node, here)
  local set = set_of(node.class)
  if not set[byte(run.text, here - 1) or 0] and set[byte(run.text, here) or 0] then
    return here
  end
end

local function again(run, node, here)
  local from, to = run.from[node.number], run.to[node.number]
  if node.number < 1 or node.number > run.level or to == 'open' then
    error('invalid capture index', 0)
  elseif to == 'place' then
    return nil
  end
  local stop = here + to - from + 1
  return stop - 1 <= run.length and sub(run.text, here, stop - 1) == sub(run.text, from, to) and stop or nil
end

local MOVES = { [BALANCED] = balanced, [FRONTIER] = frontier, [BACK] = again }

-- Where a match of the nodes from `at` on ends that begins at `here`, or nil
function step(run, at, here)
  local nodes = run.nodes
  while true do
    local node = nodes[at]
    if not node then
      return here
    end
    local kind = node.kind
    if kind == SINGLE then
      if node.mark then
        return step_class(run, at, here)
      end
      local set = node.set
      if not set then
        set = set_of(node.class)
        node.set = set
      end
      if here > run.length or not set[byte(run.text, here)] then
        return nil
      end
      here = here + 1
    elseif kind == OPEN then
      return step_open(run, at, here)
    elseif kind == CLOSE then
      return step_close(run, at, here)
    elseif kind == FINISH then
      return here == run.length + 1 and here or nil
    elseif kind == BAD then
      error(node.text, 0)
    else
      here = MOVES[kind](run, node, here)
      if not here then
        return nil
      end
    end
    at = at + 1
  end
end

local function start(text, pattern, may_anchor)
  local form = form_of(pattern, may_anchor)
  if form.is_too_much then
    error('pattern too complex', 0)
  end
  return { nodes = form.nodes, is_anchored = form.is_anchored, text = text, length = #text, level = 0, from = {}, to = {} }
end

-- The first match from a place on: its first byte, and the byte behind it
local function search(run, here)
  repeat
    run.level = 0
    local stop = step(run, 1, here)
    if stop then
      return here, stop
    end
    here = here + 1
  until run.is_anchored or here > run.length + 1
end

local function capture(run, level, first, stop)
  if level > run.level then
    if level == 1 then
      return sub(run.text, first, stop - 1)
    end
    error('invalid capture index', 0)
  end
  local to = run.to[level]
  if to == 'open' then
    error('unfinished capture', 0)
  end
  return to == 'place' and run.from[level] or sub(run.text, run.from[level], to)
end

-- Every capture from a level on; at least one, the whole match, unless `none`
local function captures(run, level, first, stop, none)
  if level > run.level and (none or level > 1) then
    return
  end
  return capture(run, level, first, stop), captures(run, level + 1, first, stop, none)
end

---------------------------------------------------------------------- the functions of the string library

local slow = {}

local function begin(length, init)
  init = init < 0 and init + length + 1 or init
  return init < 1 and 1 or init > length and length + 1 or init
end

function slow.find(text, pattern, init)
  local run = start(text, pattern, true)
  local first, stop = search(run, begin(#text, init))
  if first then
    return first, stop - 1, captures(run, 1, first, stop, true)
  end
end

function slow.match(text, pattern, init)
  local run = start(text, pattern, true)
  local first, stop = search(run, begin(#text, init))
  if first then
    return captures(run, 1, first, stop)
  end
end

function slow.gmatch(text, pattern)
  local run, here = start(text, pattern, false), 1
  return function()
    if here > run.length + 1 then
      return nil
    end
    local first, stop = search(run, here)
    if not first then
      here = run.length + 2
      return nil
    end
    here = stop == first and stop + 1 or stop
    return captures(run, 1, first, stop)
  end
end

local function filled(run, with, first, stop)
  local parts, at = {}, 1
  while true do
    local mark = find(with, '%', at, true)
    parts[#parts + 1] = sub(with, at, (mark or 0) - 1)
    if not mark then
      return concat(parts)
    end
    local letter = sub(with, mark + 1, mark + 1)
    if letter == '' then
      parts[#parts + 1] = '\0'
    elseif letter == '0' then
      parts[#parts + 1] = sub(run.text, first, stop - 1)
    elseif find(letter, '%d') then
      parts[#parts + 1] = capture(run, byte(letter) - 48, first, stop)
    else
      parts[#parts + 1] = letter
    end
    at = mark + 2
  end
end

local function replacement(run, with, first, stop)
  local kind, value = type(with), nil
  if kind == 'function' then
    value = with(captures(run, 1, first, stop))
  elseif kind == 'table' then
    value = with[capture(run, 1, first, stop)]
  else
    return filled(run, with, first, stop)
  end
  if not value then
    return sub(run.text, first, stop - 1)
  elseif type(value) ~= 'string' and type(value) ~= 'number' then
    error('invalid replacement value (a ' .. type(value) .. ')', 0)
  end
  return value
end

function slow.gsub(text, pattern, with, most)
  local run, parts, here, done = start(text, pattern, true), {}, 1, 0
  while done < most do
    run.level = 0
    local stop = step(run, 1, here)
    if stop then
      done = done + 1
      parts[#parts + 1] = replacement(run, with, here, stop)
    end
    if stop and stop > here then
      here = stop
    elseif here <= run.length then
      parts[#parts + 1] = sub(text, here, here)
      here = here + 1
    else
      here = here + 1
      break
    end
    if run.is_anchored then
      break
    end
  end
  return concat(parts) .. sub(text, here), done
end

return { price = price, quick_length = quick_length, slow = slow, forget = forget }
