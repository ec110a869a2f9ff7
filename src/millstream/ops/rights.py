"""The actions that the connection's user may not make, found in advance so that a page can grey them out.

ACL DRYRUN reports this without running anything. Most users may not run it, and Redis 6 lacks it. Then each command is
sent in a form that changes nothing, such as one for a group that does not exist. The server refuses it if the user
lacks the right to the command or the key. The right to a command without such a form (DEL) is not known in advance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.client.capabilities import Capabilities, find
from millstream.client.line import Command, Line
from millstream.client.recorded.report import ONLY_READ
from millstream.ops.actions import REGISTERED, Action
from millstream.ops.words import text_of

NO_CHANGE = f"{ONLY_READ}: give the URL of the server with --url to change something"
"""The error for every change to a report, which is read-only."""

#: Name of a group that does not exist, so that the commands below have no effect.
_NO_GROUP = "millstream:no-such-group"

#: Command -> its full form for DRYRUN, and True if this form may be sent because it changes nothing.
_FORMS: dict[str, tuple[Command, bool]] = {
    "XGROUP SETID": (("XGROUP", "SETID", "KEY", _NO_GROUP, "0-0"), True),
    "XGROUP CREATE": (("XGROUP", "CREATE", "KEY", _NO_GROUP, "no-id"), True),
    "XGROUP DESTROY": (("XGROUP", "DESTROY", "KEY", _NO_GROUP), True),
    "XGROUP DELCONSUMER": (("XGROUP", "DELCONSUMER", "KEY", _NO_GROUP, "c"), True),
    "XACK": (("XACK", "KEY", _NO_GROUP, "0-0"), True),
    "XCLAIM": (("XCLAIM", "KEY", _NO_GROUP, "c", "0", "0-0"), True),
    "XNACK": (("XNACK", "KEY", _NO_GROUP, "FAIL", "IDS", "1", "0-0"), True),
    "XDEL": (("XDEL", "KEY", "0-0"), True),
    "XADD": (("XADD", "KEY", "no-id", "f", "v"), True),
    "XTRIM": (("XTRIM", "KEY", "MAXLEN", "-1"), True),
    "ZADD": (("ZADD", "KEY", "XX", "0", "no-such-member"), True),
    "ZREM": (("ZREM", "KEY", "no-such-member"), True),
    "HDEL": (("HDEL", "KEY", "no-such-field"), True),
    "HSET": (("HSET", "KEY", "no-such-field", ""), False),
    "DEL": (("DEL", "KEY"), False),
}


@dataclass(frozen=True, slots=True)
class Rights:
    """A user's rights to one stream."""

    user: str = ""  # Name of the user; empty if the server does not report it
    # Command -> the server's reason; other commands are allowed, or their permission is unknown
    refused: Mapping[str, str] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=Capabilities)  # Newer commands that the server supports

    def why_not(self, action: Action) -> str | None:
        """Return the reason why this user may not make an action; None if nothing known prevents it."""
        for command in action.commands:
            emulated = command == "XNACK" and not self.capabilities.xnack
            run = "XCLAIM" if emulated else command
            if (why := self.refusal(run)) is not None:
                return why
        return None

    def refusal(self, command: str) -> str | None:
        """Return the reason why this user may not run a command; None if nothing known prevents it."""
        if command not in self.refused:
            return None
        if ONLY_READ in self.refused[command]:  # the reason is not in the server's users and rights
            return NO_CHANGE
        name = f" {self.user!r}" if self.user else ""
        return f"the server does not let the user{name} run {command} here: {self.refused[command]}"

    def closed(self, *, registry: bool = False) -> dict[str, str]:
        """Return the actions that this user may not make, each with the reason."""
        found = ((one.name, self.why_not(one)) for one in REGISTERED.values() if one.registry == registry)
        return {name: why for name, why in found if why is not None}


async def rights_on(line: Line, stream: str) -> Rights:
    """Read the rights of the connection's user to a stream."""
    near = line.near(stream)
    capabilities = await find(line, stream)
    names = sorted(_FORMS if capabilities.xnack else _FORMS.keys() - {"XNACK"})
    (whoami,) = await near.calls([("ACL", "WHOAMI")])
    user = "" if isinstance(whoami, Exception) else text_of(whoami)
    refused = await _dry(near, stream, user, names) if user else None
    if refused is None:
        refused = await _tried(near, stream, names)
    return Rights(user, refused, capabilities)


def _filled(name: str, stream: str) -> Command:
    return tuple(stream if word == "KEY" else word for word in _FORMS[name][0])


async def _dry(line: Line, stream: str, user: str, names: Iterable[str]) -> dict[str, str] | None:
    """Return the refused commands by ACL DRYRUN; None if the server lacks it or refuses it."""
    names = list(names)
    first, *rest = await line.calls([("ACL", "DRYRUN", user, *_filled(name, stream)) for name in names])
    if isinstance(first, Exception):
        return None
    return {
        name: text_of(reply)
        for name, reply in zip(names, (first, *rest), strict=True)
        if isinstance(reply, bytes) and reply != b"OK"
    }


async def _tried(line: Line, stream: str, names: Iterable[str]) -> dict[str, str]:
    """Return the refused commands, found by sending forms of them that change nothing."""
    names = [name for name in names if _FORMS[name][1]]
    answers = await line.calls([_filled(name, stream) for name in names])
    return {
        name: str(reply)
        for name, reply in zip(names, answers, strict=True)
        if isinstance(reply, Exception) and ("NOPERM" in str(reply) or "permission" in str(reply))
    }
