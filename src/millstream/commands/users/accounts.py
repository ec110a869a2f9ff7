"""The users of a server, and the log of refusals. No I/O; passwords are stored as SHA-256 only.

Users are configuration, not data: they are not in the server's log. ACL SAVE stores them in the ACL file, if there is
one; without a file they are gone when the server ends, as in Redis.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.commands.table.args import shown
from millstream.commands.users.permissions import RuleError, User, default_user, digest, has_spaces
from millstream.errors import MillstreamError

DEFAULT = b"default"
# Equal refusals within this many milliseconds, and this near the top of the log, share one entry.
_ALIKE_MS = 60_000
_ALIKE_DEPTH = 10


class AclFileError(MillstreamError):
    """An ACL file is invalid; ``args[0]`` gives the line and the reason. Nothing of the file was applied.

    What to do: correct the line, and then start again or send ACL LOAD.
    """


@dataclass(slots=True, eq=False)
class Refusal:
    """One entry of ACL LOG."""

    number: int  # Number, unique while the server runs
    reason: str  # ``command``, ``key``, ``channel`` or ``auth``
    context: str  # ``toplevel``, ``multi`` or ``lua``
    thing: bytes  # Refused command, key or channel
    user: bytes  # User that was refused
    client: bytes  # The session, as in CLIENT LIST
    created: int  # Wall milliseconds of the first time
    updated: int  # Wall milliseconds of the last time
    count: int = 1  # Number of times

    def is_like(self, other: "Refusal") -> bool:
        """True if another refusal repeats this one."""
        mine = (self.reason, self.context, self.thing, self.user)
        theirs = (other.reason, other.context, other.thing, other.user)
        return mine == theirs and abs(self.updated - other.updated) <= _ALIKE_MS


class Accounts:
    """All users, and ACL LOG's entries."""

    def __init__(self) -> None:
        self._users: dict[bytes, User] = {}
        # Names of users without any restriction; a shortcut that is checked for each command
        self.unrestricted: frozenset[bytes] = frozenset()
        self.log: deque[Refusal] = deque()  # Refusals, the latest first
        # Refusals since the start or the last CONFIG RESETSTAT, by reason, for INFO
        self.refused = {"auth": 0, "command": 0, "key": 0, "channel": 0}
        self._numbers = 0
        self._take({DEFAULT: default_user()})

    def _take(self, users: dict[bytes, User]) -> None:
        """Replace all users at once, so that no command ever sees half of a change."""
        self._users = dict(sorted(users.items()))
        self.unrestricted = frozenset(name for name, user in users.items() if user.is_unrestricted)

    # ------------------------------------------------------------------ users

    def get(self, name: bytes) -> User | None:
        """A user by name."""
        return self._users.get(name)

    @property
    def by_name(self) -> dict[bytes, User]:
        """A snapshot of all users; later changes do not show in it."""
        return self._users

    def all(self) -> list[User]:
        """All users by name."""
        return list(self._users.values())

    @property
    def default(self) -> User:
        """The user of a session without a login; it cannot be deleted."""
        return self._users[DEFAULT]

    @property
    def first_user(self) -> bytes | None:
        """The user of a new session: the default user, or None before AUTH."""
        return DEFAULT if self.default.is_open else None

    def set(self, name: bytes, rules: Iterable[bytes]) -> None:
        """Change or create a user: apply all rules or none."""
        user = self._users.get(name) or User(name)
        self._take({**self._users, name: user.changed(rules)})

    def delete(self, name: bytes) -> bool:
        """Remove a user; False if there is none, or if it is the default user."""
        if name == DEFAULT or name not in self._users:
            return False
        self._take({other: user for other, user in self._users.items() if other != name})
        return True

    def set_default_password(self, password: bytes) -> None:
        """Set the default user's only password for ``requirepass``, or none."""
        self.set(DEFAULT, [b"resetpass", b">" + password] if password else [b"nopass"])

    def accepts(self, name: bytes, password: bytes) -> bool:
        """True if the password is this user's, and the user is on."""
        user = self._users.get(name)
        if user is None:
            digest(password)  # takes as long as for a user that exists, so the time reveals nothing
            return False
        return user.accepts(password)

    # ------------------------------------------------------------------ the file

    def text(self) -> str:
        """All users in the form of an ACL file, one line each."""
        return b"".join(bytes(user) + b"\n" for user in self.all()).decode("utf-8", "surrogateescape")

    def load(self, text: str, name: str) -> None:
        """Replace the users by those of an ACL file, all or none.

        A file that does not name the default user leaves it as it is.
        """
        users: dict[bytes, User] = {}
        wrong: list[str] = []
        for number, line in enumerate(text.encode("utf-8", "surrogateescape").split(b"\n"), 1):
            words = line.split()
            if not words:
                continue
            try:
                user = _read_line(words, users)
            except RuleError as error:
                wrong.append(f"{name}:{number}: {_sentence(error)}")
            else:
                users[user.name] = user
        if wrong:
            raise AclFileError(" ".join(wrong))
        self._take({DEFAULT: self.default, **users})

    # ------------------------------------------------------------------ the log of refusals

    def reset_counts(self) -> None:
        """Reset the counters of refusals; the log stays."""
        self.refused = dict.fromkeys(self.refused, 0)

    def note(self, entry: Refusal, most: int) -> None:
        """Record a refusal, in the entry of similar ones or in a new one."""
        self.refused[entry.reason] += 1
        for at in range(min(_ALIKE_DEPTH, len(self.log))):
            known = self.log[at]
            if known.is_like(entry):
                known.count += 1
                known.updated, known.client = entry.updated, entry.client
                del self.log[at]
                self.log.appendleft(known)
                break
        else:
            entry.number, self._numbers = self._numbers, self._numbers + 1
            self.log.appendleft(entry)
        while len(self.log) > most:
            self.log.pop()


def _read_line(words: list[bytes], before: dict[bytes, User]) -> User:
    """Parse the user of one line of an ACL file, with Redis's error texts."""
    if words[0] != b"user" or len(words) < 2:
        raise RuleError("the line should start with user keyword followed by the username.", b"")
    name = words[1]
    if has_spaces(name):
        raise RuleError("Usernames can't contain spaces or null characters.", b"")
    if name in before:
        raise RuleError(f"Duplicate user '{shown(name)}' found.", b"")
    return User(name).changed(words[2:])


def _sentence(error: RuleError) -> str:
    """Return a refused rule's error as a part of the error about a file."""
    reason, rule = error.args
    return f"'{shown(rule)}': {reason}." if rule else reason
