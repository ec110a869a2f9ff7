"""The actions that the connection's user may not take, known before an attempt, so that a page can grey them out.

The server is asked by ACL DRYRUN, which runs nothing. Most users may not ask that, and Redis 6 does not have that
command. Then the command itself is sent in a form that changes nothing (to a group that does not exist). The server
refuses it to a user without the right to it and to that key. The right to a command without such a form (DEL) is
unknown beforehand.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.client.capabilities import Capabilities, find
from millstream.client.line import Command, Line
from millstream.client.recorded.report import ONLY_READ
from millstream.ops.actions import REGISTERED, Action
from millstream.ops.words import text_of

NO_CHANGE = f"{ONLY_READ}: give the URL of the server with --url to change something"
"""The refusal of every change of a report."""

#: A group that does not exist; the forms below do nothing to it.
_NO_GROUP = "millstream:no-such-group"

#: Command -> a whole one, for DRYRUN, and whether it may be sent as it is, since it changes nothing.
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

    user: str = ""  # Its name; empty where the server does not tell
    # Command -> the server's reason; other commands are allowed, or not known beforehand
    refused: Mapping[str, str] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=Capabilities)  # Newer commands that the server has

    def why_not(self, action: Action) -> str | None:
        """The reason why an action is not open to this user; None where it is, as far as is known."""
        for command in action.commands:
            emulated = command == "XNACK" and not self.capabilities.xnack
            run = "XCLAIM" if emulated else command
            if (why := self.refusal(run)) is not None:
                return why
        return None

    def refusal(self, command: str) -> str | None:
        """The reason why a command is not open to this user; None where it is, as far as is known."""
        if command not in self.refused:
            return None
        if ONLY_READ in self.refused[command]:  # not a matter of the server's users and rights
            return NO_CHANGE
        name = f" {self.user!r}" if self.user else ""
        return f"the server does not let the user{name} run {command} here: {self.refused[command]}"

    def closed(self, *, registry: bool = False) -> dict[str, str]:
        """Action -> why it is not open to this user."""
        found = ((one.name, self.why_not(one)) for one in REGISTERED.values() if one.registry == registry)
        return {name: why for name, why in found if why is not None}


async def rights_on(line: Line, stream: str) -> Rights:
    """The rights of the connection's user to a stream."""
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
    """Refused commands by ACL DRYRUN; None where the server has none, or does not let us ask."""
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
    """Refused commands, by forms of them that change nothing."""
    names = [name for name in names if _FORMS[name][1]]
    answers = await line.calls([_filled(name, stream) for name in names])
    return {
        name: str(reply)
        for name, reply in zip(names, answers, strict=True)
        if isinstance(reply, Exception) and ("NOPERM" in str(reply) or "permission" in str(reply))
    }
