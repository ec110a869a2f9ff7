"""The plain commands that users with restricted rights may run, for each stream that they use.

The runner of plain commands asks nobody. So a right is worked out once a user runs a command on a stream the ordinary
way, and all are forgotten after any change of a user. A right that is not known sends a command the ordinary way.
"""

from collections.abc import Mapping

from millstream.commands.table.table import resolve
from millstream.commands.users.accounts import Accounts
from millstream.commands.users.permissions import User
from millstream.engine.keyspace import Database
from millstream.engine.streams.stream import Stream
from millstream.node.plain import NAMES

LONGEST = 256
"""Largest length of a stream's name that is kept, in bytes; the memory limit does not count these names."""

MOST = 100_000
"""Number of streams of all users whose rights are kept."""

# Usual forms of each command; those of XREAD differ in their first word, by which a rule may allow it
_FORMS: Mapping[str, tuple[str, ...]] = {
    "xack": ("{} g 1",),
    "xadd": ("{} * f v",),
    "xautoclaim": ("{} g c 0 0",),
    "xclaim": ("{} g c 0 1",),
    "xlen": ("{}",),
    "xpending": ("{} g",),
    "xrange": ("{} - +",),
    "xread": ("STREAMS {} 0", "COUNT 1 STREAMS {} 0", "BLOCK 0 STREAMS {} 0"),
    "xreadgroup": ("GROUP g c STREAMS {} >",),
    "xrevrange": ("{} + -",),
}
_LATE = frozenset({"xread", "xreadgroup"})
# The bit of each command, by its name as the client writes it, in lower case
_BITS = {name.encode(): at for at, name in enumerate(NAMES) if name in _FORMS}
_ASKED = len(NAMES)  # a command's second bit, this far above the first: the first is known


class PlainRights:
    """The known rights of the users."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._users = accounts.by_name  # The users of which it is known
        self._known: dict[bytes, dict[bytes, int]] = {}
        self._streams = 0  # Number of streams of all users

    def of(self, name: bytes) -> dict[bytes, int] | None:
        """Return the commands that a user may run by stream, a bit for each; None without any restriction."""
        if name in self._accounts.unrestricted:
            return None
        if self._users is not self._accounts.by_name:
            self._users = self._accounts.by_name
            self._forget()
        return self._known.setdefault(name, {})

    def _forget(self) -> None:
        self._known.clear()
        self._streams = 0

    def learn(self, name: bytes, db: Database, words: list[bytes]) -> None:
        """Work out a user's right to a command that was not run, on its stream.

        Only this command is checked, since each check takes ten microseconds and many streams are used once.
        """
        bit = _BITS.get(words[0].lower())
        if bit is None or len(words) < 2 or (rights := self.of(name)) is None:
            return
        key, user = words[-2 if NAMES[bit] in _LATE else 1], self._users.get(name)
        bits = rights.get(key, 0)
        if user is None or bits >> bit + _ASKED & 1 or len(key) > LONGEST or not isinstance(db.keys.get(key), Stream):
            return
        if key not in rights:
            if self._streams >= MOST:
                self._forget()
                rights = self._known[name] = {}
            self._streams += 1
        rights[key] = bits | 1 << bit + _ASKED | _may_run(user, NAMES[bit], key) << bit


def _may_run(user: User, command: str, key: bytes) -> bool:
    """True if a user may run a plain command on a stream in each usual form."""
    forms = [form.encode().split() for form in _FORMS[command]]
    lines = [[command.encode(), *(key if word == b"{}" else word for word in form)] for form in forms]
    return all(user.refusal(resolve(line), line) is None for line in lines)
