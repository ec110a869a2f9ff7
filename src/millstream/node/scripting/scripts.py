"""Lua scripts: one runtime for the node, a cache of scripts by SHA-1, and the bridge between a script and the commands.

The Lua side is in ``lua/``: ``sandbox.lua`` (a script's environment, its run, its result as a reply), ``natives.lua``
and ``patterns.lua`` (Lua's own functions with bounds), ``cjson.lua``. Compiled scripts go through ``bytecode.py``.
Rules of the bridge: a host function never raises into Lua (``_guarded`` ensures it) and takes no Lua tables. The memory
limit is off while Python makes Lua values, since an allocation that fails there cannot be handled.

A plain command crosses the bridge as the bytes that a client would send, straight to the native core
(``_core/run_scripts.c``). Lua joins five arguments in 0.5 microseconds, and lupa needs 0.75 to convert them. Such a
call is made only while half of the memory is free, which a plain reply cannot fill.
"""

import hashlib
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hiredis

from millstream.clock import Now
from millstream.commands.admin.info import REDIS_VERSION, ScriptFacts
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context, Origin
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.admission import Admission
from millstream.node.batch import Batches
from millstream.node.clients.pausing import MAY_WRITE
from millstream.node.memory import OOM, Memory
from millstream.node.plain import NAMES
from millstream.node.scripting import bits, bytecode
from millstream.node.scripting.shebang import flags_of
from millstream.printable import printable
from millstream.protocol import doubles
from millstream.replies import Error, Fixed, Map, MapRow, NilArray, Push, Raw, Reply, Set, Simple, Verbatim

log = logger("millstream.script")

# Largest total size of Lua values in bytes
MEMORY = 256 * 1024 * 1024
# Number of cached scripts that only EVAL loaded; those of SCRIPT LOAD stay until SCRIPT FLUSH
EVAL_KEPT = 500
NOT_INSTALLED = "ERR Lua scripts need the package lupa: pip install 'millstream[server]'"
NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
_LEVELS = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING)
# Bytes of a text that a script logs: it makes one line, and must not fill the disk
_LOGGED = 1024
# Types of reply values that Lua receives unchanged
_AS_THEY_ARE = frozenset({bytes, int})


@dataclass(slots=True)
class Script:
    """One script."""

    sha: bytes  # SHA-1 of the source in hexadecimal
    source: bytes  # Source text
    is_loaded: bool = False  # SCRIPT LOAD loaded it
    flags: set[str] | None = None  # Flags in its first line, ``#!lua flags=a,b``; None without such a line

    @property
    def read_only(self) -> bool:
        """True if the script declared that it does not write."""
        return self.flags is not None and "no-writes" in self.flags

    @property
    def is_free(self) -> bool:
        """True if the script declared that it may add data above the memory limit."""
        return self.flags is not None and "allow-oom" in self.flags

    body: Any = None  # Compiled function in the present runtime


@dataclass(slots=True)
class _Run:
    """The script that runs now."""

    ctx: Context
    read_only: bool
    resp: int = 2
    ends: float | None = None
    limit: int = 0
    # Arguments of the next command so far, if they arrive in parts
    words: list[bytes] = field(default_factory=list)
    is_plain: bool = False  # The runtime runs plain commands directly, without this object
    is_full: bool = False  # Memory was above the limit at the start, and the script has not yet written


class Scripts:
    """The scripts of one node."""

    def __init__(
        self,
        config: Config,
        admission: Admission,
        batches: Batches,
        context: Callable[[Session, Now, Origin], Context],
        run: Callable[[Context, Command, list[bytes]], Reply],
        refuse: Callable[[Command | None, str], Error],
        *,
        memory: Memory,
    ) -> None:
        self._config, self._admission, self._batches, self._memory = config, admission, batches, memory
        self._context, self._run_command, self._refuse = context, run, refuse  # functions of the node
        self._scripts: dict[bytes, Script] = {}
        self._lua: Any = None
        self._compile: Any = None
        self._execute: Any = None
        self._lent: list[Any] = []  # Python functions that the runtime calls
        self._run: _Run | None = None
        self._faults: list[BaseException] = []

    # ------------------------------------------------------------------ the cache

    def load(self, source: bytes) -> bytes:
        """SCRIPT LOAD: store a script; return its SHA-1."""
        script = self._known(source)
        script.is_loaded = True
        return script.sha

    def exists(self, sha: bytes) -> bool:
        """SCRIPT EXISTS for one SHA-1."""
        return sha.lower() in self._scripts

    def facts(self) -> ScriptFacts:
        """INFO's facts about scripts."""
        return ScriptFacts(
            len(self._scripts), sum(len(script.source) for script in self._scripts.values()), self.memory()
        )

    def memory(self) -> int:
        """Size of the runtime in bytes."""
        return 0 if self._lua is None else self._lua.get_memory_used(total=True)

    def flush(self) -> None:
        """SCRIPT FLUSH: drop all scripts, and the runtime with them."""
        self._scripts.clear()
        self._drop()

    def _known(self, source: bytes) -> Script:
        """Return the script of this text, compiled once. A script that does not compile is not stored, as in Redis."""
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        script = self._scripts.get(sha)
        if script is None:
            script = Script(sha, source)
            self._prepare(script)
            self._scripts[sha] = script
            self._forget_oldest()
        return script

    def _forget_oldest(self) -> None:
        """Limit the number of EVAL's scripts: programs that put values into the text make a new one each time."""
        brought = [sha for sha, script in self._scripts.items() if not script.is_loaded]
        if len(brought) > EVAL_KEPT:
            del self._scripts[brought[0]]

    def _prepare(self, script: Script) -> None:
        """Read the flags in the first line, then compile."""
        text = script.source
        if text.startswith(b"#!"):
            rest = text.partition(b"\n")[2]
            script.flags = flags_of(text)
            text = b"\n" + rest  # keeps line numbers, which errors contain
        if self._lua is None:
            self._start()
        try:
            body, problem = self._compile(text, b"@user_script"), None
        except Exception as error:
            self._drop()
            raise CommandError(f"ERR Error compiling script (new function): {error}") from error
        self._raise_fault()
        if isinstance(body, tuple):
            body, problem = body
        if body is None:
            reason = problem.decode("utf-8", "surrogateescape") if problem else ""
            raise CommandError(f"ERR Error compiling script (new function): {reason}")
        script.body = body

    def only_reads(self, argv: list[bytes]) -> bool:
        """True if EVAL or EVALSHA calls a script that declared ``no-writes``; does not compile the script."""
        return "no-writes" in (self._declared(argv) or ())

    def may_add(self, argv: list[bytes]) -> bool:
        """True if EVAL or EVALSHA calls a script with flags, none of which permits it above the memory limit."""
        flags = self._declared(argv)
        return flags is not None and flags.isdisjoint({"no-writes", "allow-oom"})

    def _declared(self, argv: list[bytes]) -> set[str] | None:
        """Return the declared flags of the script that a command calls; None without a valid line of flags."""
        if argv[0].lower().startswith(b"evalsha"):
            script = self._scripts.get(argv[1].lower())
            return None if script is None else script.flags
        try:
            return flags_of(argv[1]) if argv[1].startswith(b"#!") else None
        except CommandError:
            return None

    # ------------------------------------------------------------------ running

    def run_source(
        self, ctx: Context, source: bytes, keys: list[bytes], args: list[bytes], *, read_only: bool
    ) -> Reply:
        """Run EVAL's script by its text."""
        return self._call(ctx, self._known(source), keys, args, read_only=read_only)

    def run_sha(self, ctx: Context, sha: bytes, keys: list[bytes], args: list[bytes], *, read_only: bool) -> Reply:
        """Run EVALSHA's script by its SHA-1."""
        script = self._scripts.get(sha.lower())
        if script is None:
            raise CommandError(NO_SCRIPT)
        return self._call(ctx, script, keys, args, read_only=read_only)

    def _call(self, ctx: Context, script: Script, keys: list[bytes], args: list[bytes], *, read_only: bool) -> Reply:
        """Run a script, and make a reply of its result or its error.

        After a failure that Lua could not contain (its memory, an error of lupa's), the next script gets a new runtime.
        """
        if read_only and script.flags is not None and not script.read_only:
            raise CommandError("ERR Can not execute a script with write flag using *_ro command.")
        if self._lua is None or script.body is None:
            self._prepare(script)
        session = ctx.session
        before = session.db, session.queue, session.resp, session.reply_mode, session.last_command
        # Changes of these settings end with the script, and a MULTI around the script does not queue its calls
        session.queue, session.resp, session.reply_mode = None, 2, "on"
        inner = self._context(session, ctx.now, Origin.SCRIPT)
        limit = self._config.script_limit
        ends = time.monotonic() + limit / 1000 if limit > 0 else None
        is_full = self._memory.was_over and not script.is_free
        self._run = run = _Run(inner, read_only or script.read_only, ends=ends, limit=limit, is_full=is_full)
        lua = self._lua
        try:
            self._begin_plain(run)
            answer = self._execute(script.body, lua.table_from(keys), lua.table_from(args), before[2] == 3)
        except MemoryError:
            answer = (False, b"ERR not enough memory", None, None, False)
        except Exception as error:  # noqa: BLE001 - an error of lupa; do not trust the runtime afterwards
            problem = f"ERR {type(error).__name__} in Lua: {error}".encode("utf-8", "replace")
            # The time limit may pass between two calls that Lua protects
            answer = (False, self._stop_line() if self._is_over() else problem, None, None, False)
            self._drop()
        finally:
            self._end_plain(run)
            session.db, session.queue, session.resp, session.reply_mode, session.last_command = before
            ctx.dirty += inner.dirty
            self._run = None
        self._raise_fault()
        if answer[0]:
            self._relax()
            ctx.failed = answer[2]
            return Raw([answer[1]])
        if b"not enough memory" in answer[1]:
            self._drop()
        self._relax()
        ctx.failed = True
        *parts, counted = answer[1:]
        line = _error_text(script, *parts)
        return Error(line) if counted else self._refuse(None, line)

    def _begin_plain(self, run: _Run) -> None:
        """Let plain commands run without a call of :meth:`_command`, if nothing prevents it."""
        if run.read_only or run.resp != 2 or run.is_full:
            return
        left = -1 if run.ends is None else max(int((run.ends - time.monotonic()) * 1e9), 0)
        session, wall = run.ctx.session, run.ctx.now.wall
        run.is_plain = self._batches.begin_calls(session, wall, left, self._lua.table_from, self._faults)

    def _end_plain(self, run: _Run) -> None:
        """End a run of plain commands: their changes come before those of the next command."""
        if run.is_plain:
            run.is_plain = False
            done = self._batches.end_calls(run.ctx.now.wall)
            run.ctx.dirty += done.changes
            if done.woken is not None:
                run.ctx.host.wake(run.ctx.session.db, done.woken)

    def _raise_fault(self) -> None:
        """Raise the exception of a host function that Lua called; the runtime is not trusted afterwards."""
        if self._faults:
            fault = self._faults[0]
            self._faults.clear()
            self._drop()
            raise fault

    def _relax(self) -> None:
        """Collect the garbage of a large script now, since the next script may lack that memory."""
        if self._lua is not None and self._lua.get_memory_used() > MEMORY // 4:
            self._lua.gccollect()

    def _drop(self) -> None:
        """Drop the runtime and its memory; scripts are compiled again at their next use.

        The runtime and the host functions refer to each other, so Python's collector would find them late, with all
        memory of the scripts. So the circle is cut here.
        """
        self._lua = self._compile = self._execute = None
        for function in self._lent:
            function.__setstate__((_nothing, (), {}, None))
        self._lent.clear()
        self._drop_bodies()

    # ------------------------------------------------------------------ the runtime

    def _start(self) -> None:
        """Make a new runtime."""
        try:
            from lupa import lua51  # noqa: PLC0415 - only servers that run scripts need Lua
        except ImportError:
            raise CommandError(NOT_INSTALLED) from None
        self._lua = lua = lua51.LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            max_memory=MEMORY,
            attribute_filter=_nothing,
        )
        lua.set_max_memory(0)
        major, minor, patch = map(int, REDIS_VERSION.split("."))
        number = major << 16 | minor << 8 | patch
        self._compile, self._execute = _load(lua, "sandbox")(
            lua.table_from(self._host(lua)),
            REDIS_VERSION.encode(),
            number,
            random.getrandbits(48),
            _load(lua, "patterns")(),
            _load(lua, "natives"),
            _load(lua, "cjson")(),
            self._batches.call,
            " ".join(NAMES).encode(),
        )
        self._drop_bodies()

    def _drop_bodies(self) -> None:
        for script in self._scripts.values():
            script.body = None

    def _host(self, lua: Any) -> dict[bytes, Any]:
        """The host functions by name. The first two are C functions: no exception of a signal can arise in them."""
        functions: dict[bytes, Any] = {
            b"arm": self._lend(lua.set_max_memory, MEMORY),
            b"disarm": (disarm := self._lend(lua.set_max_memory, 0)),
        }
        for name, function in {**self._functions(_Values(self._lend(lua.table_from))), **_PURE}.items():
            functions[name.encode()] = self._guarded(disarm, function)
        return functions

    def _lend(self, method: Callable[..., Any], *args: object) -> Callable[..., Any]:
        """A C method of the runtime, callable until the runtime is dropped."""
        lent = partial(method, *args)
        self._lent.append(lent)
        return lent

    def _guarded(self, disarm: Callable[[], object], function: Callable[..., Any]) -> Callable[..., tuple[int, Any]]:
        """Wrap a function for Lua: it returns 0 and a value, or the reason why the script must end; it never raises.

        An exception would reach the script as a Python object. So it is stored, and raised after Lua returns.
        """

        def call(*args: Any) -> tuple[int, Any]:
            try:
                disarm()
                value = function(*args)
                return (1, self._stop_line()) if self._is_over() else (0, value)
            except BaseException as error:  # noqa: BLE001 - raised again outside of Lua
                self._faults.append(error)
                return 2, b"ERR internal error"

        return call

    def _functions(self, to_lua: "_Values") -> dict[str, Callable[..., Any]]:
        """The sandbox's functions that depend on the running script."""

        def words(*first: bytes | float) -> None:
            assert self._run is not None
            self._run.words = list(map(_word_of, first))

        def more_words(*some: bytes | float) -> None:
            assert self._run is not None
            self._run.words += map(_word_of, some)

        def whole(*all_of_them: bytes | float) -> tuple[_Run, list[bytes]]:
            assert self._run is not None
            words = [
                each if type(each) is bytes else _text(each)  # type: ignore[arg-type]  # what is not bytes is a number
                for each in all_of_them
            ]
            return self._run, words or self._run.words

        def call(*all_of_them: bytes | float) -> Any:
            run, argv = whole(*all_of_them)
            if self._faults:
                raise self._faults[0]
            self._end_plain(run)
            reply = self._command(run, argv)
            self._begin_plain(run)
            return to_lua.convert(reply, run.resp)

        def allows(*all_of_them: bytes | float) -> bool | None:
            run, argv = whole(*all_of_them)
            row = find(argv)
            if row is None or (row.handler is None and len(argv) > 1):
                return None
            return self._admission.allows(run.ctx.session, row, argv)

        def set_resp(version: float) -> None:
            assert self._run is not None
            self._end_plain(self._run)
            self._run.resp = self._run.ctx.session.resp = int(version)
            self._begin_plain(self._run)

        def count(line: bytes) -> None:
            self._refuse(None, line.decode("utf-8", "surrogateescape"))

        return {
            "look": lambda: None,
            "words": words,
            "more_words": more_words,
            "call": call,
            "allows": allows,
            "set_resp": set_resp,
            "count": count,
        }

    def _is_over(self) -> bool:
        run = self._run
        return run is not None and run.ends is not None and time.monotonic() >= run.ends

    def _stop_line(self) -> bytes:
        run = self._run
        assert run is not None
        self._end_plain(run)  # counts its writes
        wrote = "; what it had written stays" if run.ctx.dirty else ""
        return f"ERR Script stopped after {run.limit} ms (busy-reply-threshold){wrote}".encode()

    def _command(self, run: _Run, argv: list[bytes]) -> Reply:
        """Run one redis.call."""
        row = find(argv)
        refuse = self._refuse
        if row is None or (row.handler is None and len(argv) > 1):
            return refuse(None, "ERR Unknown Redis command called from script")
        if row.handler is None or (row.arity > 0 and len(argv) != row.arity) or len(argv) < -row.arity:
            return refuse(row, "ERR Wrong number of args calling Redis command from script")
        if "noscript" in row.flags:
            return refuse(row, "ERR This Redis command is not allowed from script")
        if run.read_only and ("write" in row.flags or row.name in MAY_WRITE):
            return refuse(row, "ERR Write commands are not allowed from read-only scripts.")
        if run.is_full and "denyoom" in row.flags:
            return refuse(row, OOM)
        if "write" in row.flags:
            run.is_full = False  # as in Redis, a script that has begun to write may finish
        return self._run_command(run.ctx, row, argv)


def _error_text(script: Script, text: bytes, source: bytes | None = None, line: int | None = None) -> str:
    """Return the error line of a failed script."""
    said = text.decode("utf-8", "surrogateescape")
    if source is None or line is None or line < 1:  # a tail call in the script: its line is lost
        return said
    place = source.decode("utf-8", "surrogateescape")
    return f"{said} script: {script.sha.decode()}, on {place}:{line}."


def _load(lua: Any, name: str) -> Any:
    """Load one of the Lua files as a Lua function."""
    from importlib import resources  # noqa: PLC0415 - a server without scripts does not read their Lua

    text = resources.files("millstream.node.scripting").joinpath("lua", f"{name}.lua").read_bytes()
    chunk, code = b"=" + name.encode(), lua.globals()[b"string"][b"dump"]
    # With all frames kept, the level of an error equals the number of calls in the source
    return lua.globals()[b"loadstring"](bytecode.mended(code(lua.compile(text, name=chunk)), keep_frames=True), chunk)


def _nothing(found: object, name: object, is_setting: bool) -> object:  # noqa: ARG001 - lupa's signature
    """Refuse Lua access to every attribute of a Python object."""
    raise AttributeError("not for scripts")


class _Values:
    """Reply values as Lua values, as Redis converts them."""

    def __init__(self, table: Callable[..., Any]) -> None:
        self._table = table
        self._kinds: dict[type, Callable[[Any, int], Any]] = {
            bytes: lambda value, resp: value,  # noqa: ARG005 - one signature
            int: lambda value, resp: value,  # noqa: ARG005 - one signature
            type(None): _null,
            NilArray: _null,
            bool: lambda value, resp: value if resp == 3 else int(value),
            float: self._float,
            Simple: lambda value, resp: self._table({b"ok": value.text}),  # noqa: ARG005 - one signature
            Error: self._error,
            Raw: self._raw,
            list: self._list,
            Map: self._map,
            MapRow: self._map,
            Set: self._set,
            Push: lambda value, resp: self._list(value.items, resp),
            Verbatim: self._verbatim,
            Fixed: lambda value, resp: self.convert(value.value, resp),
        }

    def convert(self, value: Reply, resp: int) -> Any:
        """Convert one value, by the RESP version that the script selected."""
        return self._kinds[type(value)](value, resp)

    def _float(self, value: float, resp: int) -> Any:
        return self._table({b"double": value}) if resp == 3 else doubles.text(value)

    def _error(self, value: Error, resp: int) -> Any:  # noqa: ARG002 - one signature
        line = value.line.encode("utf-8", "surrogateescape")
        return self._table({b"err": line, b"ignore_error_stats_update": True})

    def _raw(self, value: Raw, resp: int) -> Any:
        if value.buffers[0][:1] == b",":  # it may exceed a double, which hiredis refuses
            return self.convert(float(b"".join(value.buffers)[1:]), resp)
        reader = hiredis.Reader()
        for buffer in value.buffers:
            reader.feed(bytes(buffer))
        return self.convert(reader.gets(), resp)

    def _list(self, value: list[Reply], resp: int) -> Any:
        """Convert a list to a table from 1.

        A value that is nil for the script leaves a gap, and does not move later ones.
        """
        if not _AS_THEY_ARE.issuperset(map(type, value)):
            value = [self.convert(item, resp) for item in value]
        if resp == 2 or None not in value:
            return self._table(value)  # a shortcut, since most long replies are lists of short lists
        table = self._table([])
        for at, item in enumerate(value, 1):
            if item is not None:
                table[at] = item
        return table

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> Any:
        """Convert pairs to a table; Lua cannot have nil as a key, and a nil value does not count as a pair."""
        table = self._table([])
        for key, item in pairs:
            if key is not None and item is not None:
                table[key] = item
        return table

    def _map(self, value: Map | MapRow, resp: int) -> Any:
        if resp == 2:
            return self._list([word for pair in value.pairs for word in pair], resp)
        pairs = [(self.convert(key, resp), self.convert(item, resp)) for key, item in value.pairs]
        return self._table({b"map": self._pairs(pairs)})

    def _set(self, value: Set, resp: int) -> Any:
        if resp == 2:
            return self._list(list(value.items), resp)
        return self._table({b"set": self._pairs([(self.convert(item, resp), True) for item in value.items])})

    def _verbatim(self, value: Verbatim, resp: int) -> Any:
        if resp == 2:
            return value.text
        return self._table({b"verbatim_string": self._table({b"format": value.format, b"string": value.text})})


def _null(value: object, resp: int) -> bool | None:  # noqa: ARG001 - one signature
    return None if resp == 3 else False


def _word_of(word: bytes | float) -> bytes:
    """Return a command's argument as bytes; a number as its shortest digits, as Redis since 7.2."""
    if isinstance(word, bytes):
        return word
    return _text(word)


def _text(number: float) -> bytes:
    if math.isnan(number) and math.copysign(1, number) < 0:
        return b"-nan"
    return doubles.text(number)


# ---------------------------------------------------------------------- functions without a script


def _weigh(source: bytes) -> bytes | None:
    refused = bytecode.objection(source)
    return None if refused is None else refused.encode()


def _tell(level: int, text: bytes) -> None:
    shown = printable(text[:_LOGGED].decode("utf-8", "replace")).replace("\n", "\\n")
    log.log(_LEVELS[level], "%s", shown + "..." if len(text) > _LOGGED else shown)


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


_PURE: dict[str, Callable[..., Any]] = {
    "weigh": _weigh,
    "mend": bytecode.mended,
    "log": _tell,
    "sha1": _sha1,
    "hex": bits.hexadecimal,
    "bits": bits.operate,
    "find": bytes.find,
    "double": doubles.text,
}
