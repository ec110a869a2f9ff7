"""The plain commands that users with restricted rights may run, for each stream that they use.

The runner of plain commands asks nobody. So rights are worked out once a user runs a command on a stream the ordinary
way, and are forgotten after any change of a user. A command or a stream without an entry takes the ordinary way.
"""

from collections.abc import Mapping

from millstream.commands.table.table import resolve
from millstream.commands.users.accounts import Accounts
from millstream.commands.users.permissions import User
from millstream.engine.keyspace import Database
from millstream.engine.streams.stream import Stream
from millstream.node.plain import NAMES

# Streams of one user whose rights are kept
_MOST = 10_000
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
_LATE = frozenset({b"XREAD", b"XREADGROUP"})


class PlainRights:
    """What is known of the users' rights."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._users = accounts.by_name  # The users of which it is known
        self._known: dict[bytes, dict[bytes, int]] = {}

    def of(self, name: bytes) -> dict[bytes, int] | None:
        """Return the commands that a user may run by stream, a bit for each; None without any restriction."""
        if name in self._accounts.unrestricted:
            return None
        if self._users is not self._accounts.by_name:
            self._users = self._accounts.by_name
            self._known.clear()
        return self._known.setdefault(name, {})

    def learn(self, name: bytes, db: Database, words: list[bytes]) -> None:
        """Work out a user's rights on the stream of a command that was not run."""
        rights, user = self.of(name), self._users.get(name)
        key = words[-2 if words[0].upper() in _LATE else 1] if len(words) > 1 else b""
        if rights is None or user is None or key in rights or not isinstance(db.keys.get(key), Stream):
            return
        if len(rights) >= _MOST:
            rights.clear()
        rights[key] = sum(1 << at for at, command in enumerate(NAMES) if _may_run(user, command, key))


def _may_run(user: User, command: str, key: bytes) -> bool:
    """True if a user may run a plain command on a stream in each usual form."""
    forms = [form.encode().split() for form in _FORMS.get(command, ())]
    lines = [[command.encode(), *(key if word == b"{}" else word for word in form)] for form in forms]
    return bool(lines) and all(user.refusal(resolve(line), line) is None for line in lines)
