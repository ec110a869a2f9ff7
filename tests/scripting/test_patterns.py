"""The interruptible pattern matcher equals Lua's own: positions, captures, replacements and errors."""

import random
from importlib import resources
from typing import Any

import pytest

from support import needs

SOUND = r"a b . %a %d %w %s %x [ab] [^a] [a-c%d] [%z] [^%s] %% %. ( ) () (a) (.) (.-) %1 %2 %b() %bab %f[a] %f[^%w]"
MARKED = r"\0 $ ^ - a* a- a+ a? .* .- .+ .? %w* %w- [^b]+ [ab]-"
UNSOUND = r"% [ [a [^ %b %bx %f ]"
ITEMS = f"{SOUND} {MARKED} {UNSOUND}".split()
ALPHABET = "aab()1 x\\0%"


@pytest.fixture(scope="module")
def both() -> Any:
    """Return a function that runs a string function with both matchers and returns both results as text."""
    lua51: Any = needs.package("lupa.lua51")
    lua = lua51.LuaRuntime(encoding=None)
    source = resources.files("millstream.node.scripting").joinpath("lua", "patterns.lua").read_bytes()
    return lua.execute(
        b"""
        local patterns = (...)
        local function told(call, all, ...)
          local found = {pcall(call, ...)}
          if found[1] and all then
            local iterator, parts = found[2], {}
            for round = 1, 20 do
              local values = {pcall(iterator)}
              if values[2] == nil then break end
              for at, value in ipairs({unpack(values, 2)}) do parts[#parts + 1] = type(value) .. tostring(value) end
              parts[#parts + 1] = tostring(values[1])
            end
            return 'all ' .. table.concat(parts, '|')
          end
          for at = 1, #found do found[at] = type(found[at]) .. tostring(found[at]) end
          return table.concat(found, '|')
        end
        local function compare(name, ...)
          local count = select('#', ...)
          if name == 'gsub' then
            local text, pattern, with = ...
            return told(string.gsub, false, ...), told(patterns.slow.gsub, false, text, pattern, with, #text + 1)
          end
          return told(string[name], name == 'gmatch', ...), told(patterns.slow[name], name == 'gmatch', ...)
        end
        return compare
        """,
        lua.compile(source)(),
    )


def words(rng: random.Random) -> tuple[bytes, bytes]:
    """Return a random text and pattern."""
    pattern = "".join(rng.choice(ITEMS) for _ in range(rng.randrange(1, 6)))
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(12)))
    return text.replace("\\0", "\0").encode(), pattern.replace("\\0", "\0").encode()


@pytest.mark.parametrize("name", ["find", "match", "gmatch", "gsub"])
def test_both_matchers_find_the_same(both: Any, name: str) -> None:
    """For 4,000 random patterns, valid and invalid, both matchers return the same."""
    rng = random.Random(name)
    for _ in range(4_000):
        text, pattern = words(rng)
        if name == "gsub":
            rest: tuple[Any, ...] = (rng.choice((b"x", b"<%0>", b"%1", b"%", b"%%", b"%2")),)
        else:
            rest = () if name == "gmatch" else (rng.choice((1, 2, -1, -3, 0, 20)),)
        if name == "find" and not set(b"^$*+?.([%-") & set(pattern.partition(b"\0")[0]):
            continue  # no pattern, but a text to look for as it stands
        native, ours = both(name.encode(), text, pattern, *rest)
        assert ours == native, (name, text, pattern, rest)
