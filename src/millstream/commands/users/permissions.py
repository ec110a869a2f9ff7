"""A user's permissions: the rules of ACL SETUSER, and the check of a command against them. No I/O.

A user has a root selector and any number of further ones, written in parentheses. A command is allowed if one selector
allows all of it: the command, every key with the access it needs, every channel. Anything that no rule allows is
denied.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/
"""

import copy
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream import glob
from millstream.commands.table.args import keyword, shown
from millstream.commands.table.keyspecs import Use, uses_of
from millstream.commands.table.spec import Command
from millstream.commands.table.table import every, named
from millstream.commands.users.categories import CATEGORIES, categories
from millstream.errors import MillstreamError

UNKNOWN = "Unknown command or category name in ACL"
SYNTAX = "Syntax error"
KEYS_OPEN = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try "
    "'resetkeys' to start with an empty list of patterns"
)
CHANNELS_OPEN = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try "
    "'resetchannels' to start with an empty list of channels"
)
NOT_KEPT = "The password you are trying to remove from the user does not exist"
BAD_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
SUB_ARGUMENT = "Allowing first-arg of a subcommand is not supported"

_HASH = re.compile(rb"[0-9a-f]{64}")
_SPACES = frozenset(b" \t\n\v\f\r\0")
# Pub/sub command -> its arguments are patterns; PUBLISH names one channel, the others any number
_CHANNELS = {"publish": False, "subscribe": False, "psubscribe": True}


class RuleError(MillstreamError):
    """The server refused an ACL rule; ``args`` are Redis's reason and the rule, without its password.

    What to do: correct the rule that the message names. ACL SETUSER changed nothing.
    """


class Denial(NamedTuple):
    """The reason why a command is refused."""

    rank: int  # 1 command, 2 key, 3 channel; of several selectors' reasons, the one with the highest rank is reported
    at: int  # Index of the key or channel in the arguments, 0 for the command

    @property
    def reason(self) -> str:
        """The reason with ACL LOG's name."""
        return ("command", "key", "channel")[self.rank - 1]


def has_spaces(word: bytes) -> bool:
    """True if a user name or a pattern could not be written in an ACL file."""
    return not _SPACES.isdisjoint(word)


def digest(password: bytes) -> bytes:
    """Return the stored form of a password."""
    return hashlib.sha256(password).hexdigest().encode()


@dataclass(slots=True)
class KeyPattern:
    """Keys that may be read, written or both."""

    pattern: bytes
    reads: bool
    writes: bool
    fits: Callable[[bytes], bool]

    def allows(self, key: bytes, use: Use) -> bool:
        """True if the key may be used this way."""
        return (self.reads or not use.reads) and (self.writes or not use.writes) and self.fits(key)

    def __bytes__(self) -> bytes:
        if self.reads and self.writes:
            return b"~" + self.pattern
        return (b"%R~" if self.reads else b"%W~") + self.pattern


@dataclass(slots=True)
class Selector:
    """One set of permissions."""

    allowed: set[str] = field(default_factory=set)  # Full names of allowed commands and subcommands
    is_open: bool = False  # It first allowed every command, and later rules removed some
    all_commands: bool = False  # Every command is allowed
    # Commands that are allowed only with certain first arguments (``+select|0``), lower case
    first_words: dict[str, list[bytes]] = field(default_factory=dict)
    # Rules about commands since the last that allowed or denied everything, in order
    rules: list[str] = field(default_factory=list)
    all_keys: bool = False  # Every key is allowed in every way
    keys: list[KeyPattern] = field(default_factory=list)  # Patterns of the allowed keys otherwise
    all_channels: bool = False  # Every channel is allowed
    channels: dict[bytes, Callable[[bytes], bool]] = field(default_factory=dict)  # Else, these; pattern and test

    # ------------------------------------------------------------------ rules

    def apply(self, rule: bytes) -> None:
        """Change the permissions by one rule."""
        whole = _WHOLE.get(keyword(rule).lower())
        if whole is not None:
            whole(self)
        elif rule[:1] in {b"~", b"%"}:
            self._add_key(rule)
        elif rule[:1] == b"&":
            self._add_channel(rule)
        elif rule[:1] in {b"+", b"-"}:
            self._change_commands(rule)
        else:
            raise RuleError(SYNTAX, rule)

    def set_all_keys(self, allow: bool) -> None:
        """Apply ``allkeys`` or ``resetkeys``."""
        self.all_keys = allow
        self.keys.clear()

    def set_all_channels(self, allow: bool) -> None:
        """Apply ``allchannels`` or ``resetchannels``."""
        self.all_channels = allow
        self.channels.clear()

    def set_all_commands(self, allow: bool) -> None:
        """Apply ``allcommands`` or ``nocommands``."""
        self.is_open = self.all_commands = allow
        self.allowed = {row.name for row in every()} if allow else set()
        self.first_words.clear()
        self.rules.clear()

    def _add_key(self, rule: bytes) -> None:
        """Add ``~pattern`` for reading and writing, or ``%R~`` and ``%W~`` for one of them.

        Two rules with the same pattern become one that allows both.
        """
        if self.all_keys:
            raise RuleError(KEYS_OPEN, rule)
        letters, _, pattern = rule.partition(b"~")
        how = letters[1:].upper()
        if (letters and how not in {b"R", b"W", b"RW", b"WR"}) or has_spaces(pattern):
            raise RuleError(SYNTAX, rule)
        reads, writes = (b"R" in how, b"W" in how) if letters else (True, True)
        for known in self.keys:
            if known.pattern == pattern:
                known.reads, known.writes = known.reads or reads, known.writes or writes
                return
        self.keys.append(KeyPattern(pattern, reads, writes, glob.rule(pattern)))

    def _add_channel(self, rule: bytes) -> None:
        """Add ``&pattern``; a pattern that a client subscribes to must equal one of these."""
        if self.all_channels:
            raise RuleError(CHANNELS_OPEN, rule)
        if has_spaces(rule):
            raise RuleError(SYNTAX, rule)
        self.channels[rule[1:]] = glob.rule(rule[1:])

    def _change_commands(self, rule: bytes) -> None:
        """Apply ``+name``, ``-name``, ``+@category`` or ``+name|word``; the last also means a first argument."""
        allow, name = rule[:1] == b"+", rule[1:]
        if name[:1] == b"@":
            self._change_category(rule, keyword(name[1:]).decode("latin-1").lower(), allow)
            return
        row = named(keyword(name))
        if row is None:
            if not allow or b"|" not in name:
                raise RuleError(UNKNOWN, rule)
            self._allow_first_word(rule, name)
            return
        self._set(row, allow)
        self._remember(row.name, allow)

    def _change_category(self, rule: bytes, category: str, allow: bool) -> None:
        """Apply ``+@write`` to every command in it; stored as one rule, so ACL LIST shows it as it was written."""
        if category not in CATEGORIES:
            raise RuleError(UNKNOWN, rule)
        self._remember(f"@{category}", allow)
        for row in every():
            if f"@{category}" in categories(row):
                self._set(row, allow)

    def _allow_first_word(self, rule: bytes, name: bytes) -> None:
        """Apply ``+command|word`` for a command without subcommands: allow that first argument."""
        head, _, word = name.rpartition(b"|")
        row = named(keyword(head))
        if row is None:
            raise RuleError(UNKNOWN, rule)
        if "|" in row.name:
            raise RuleError(SUB_ARGUMENT, rule)
        if not word:
            raise RuleError(SYNTAX, rule)
        if row.subcommands:
            raise RuleError(UNKNOWN, rule)
        words = self.first_words.setdefault(row.name, [])
        if word.lower() not in words:
            words.append(word.lower())
        self._remember(name.lower().decode("utf-8", "surrogateescape"), True)

    def _set(self, row: Command, allow: bool) -> None:
        """Allow or deny a command with all its subcommands; rules about its first arguments are dropped."""
        names = [row.name, *(sub.name for sub in row.subcommands.values())]
        self.first_words.pop(row.name, None)
        if allow:
            self.allowed.update(names)
        else:
            self.allowed.difference_update(names)
            self.all_commands = False

    def _remember(self, name: str, allow: bool) -> None:
        """Store the rule for ACL LIST; drop earlier ones about the same command or its subcommands."""
        self.rules = [rule for rule in self.rules if rule[1:] != name and not rule[1:].startswith(f"{name}|")]
        self.rules.append(("+" if allow else "-") + name)

    # ------------------------------------------------------------------ as text

    @property
    def commands_text(self) -> bytes:
        """The rules about commands."""
        text = " ".join(["+@all" if self.is_open else "-@all", *self.rules])
        return text.encode("utf-8", "surrogateescape")

    @property
    def keys_text(self) -> bytes:
        """The rules about keys."""
        return b"~*" if self.all_keys else b" ".join(map(bytes, self.keys))

    @property
    def channels_text(self) -> bytes:
        """The rules about channels."""
        return b"&*" if self.all_channels else b" ".join(b"&" + pattern for pattern in self.channels)

    def __bytes__(self) -> bytes:
        parts = [self.keys_text] if self.keys_text else []
        if not self.all_channels:
            parts.append(b"resetchannels")
        if self.channels_text:
            parts.append(self.channels_text)
        return b" ".join([*parts, self.commands_text])

    # ------------------------------------------------------------------ checks

    @property
    def is_unrestricted(self) -> bool:
        """True if everything is allowed."""
        return self.all_commands and self.all_keys and self.all_channels

    def reads_every_key(self, row: Command, argv: Sequence[bytes]) -> bool:
        """True if the command is allowed, with read access to every key."""
        every = self.all_keys or any(pattern.reads and pattern.pattern == b"*" for pattern in self.keys)
        return every and self._allows_command(row, argv)

    def refusal(self, row: Command, argv: Sequence[bytes], uses: Sequence[tuple[int, Use]]) -> Denial | None:
        """Return why a command may not run, or None.

        The command is checked first, then keys, then channels: the latest of these reasons is the most helpful one.
        """
        if not self._allows_command(row, argv):
            return Denial(1, 0)
        if not self.all_keys:
            for at, use in uses:
                if not any(pattern.allows(argv[at], use) for pattern in self.keys):
                    return Denial(2, at)
        if not self.all_channels and row.name in _CHANNELS:
            by_pattern = _CHANNELS[row.name]
            for at in range(1, 2 if row.name == "publish" else len(argv)):
                if not self.allows_channel(argv[at], by_pattern=by_pattern):
                    return Denial(3, at)
        return None

    def _allows_command(self, row: Command, argv: Sequence[bytes]) -> bool:
        """True if the command itself is allowed; AUTH and similar commands always are."""
        if self.all_commands or row.name in self.allowed or "no_auth" in row.flags:
            return True
        words = self.first_words.get(row.name)
        return words is not None and len(argv) > 1 and argv[1].lower() in words

    def allows_channel(self, channel: bytes, *, by_pattern: bool) -> bool:
        """True if a channel may be used; a pattern to subscribe to must equal a rule's pattern exactly."""
        if self.all_channels:
            return True
        return channel in self.channels if by_pattern else any(fits(channel) for fits in self.channels.values())


_WHOLE: dict[bytes, Callable[[Selector], None]] = {
    b"allkeys": lambda selector: selector.set_all_keys(True),
    b"~*": lambda selector: selector.set_all_keys(True),
    b"resetkeys": lambda selector: selector.set_all_keys(False),
    b"allchannels": lambda selector: selector.set_all_channels(True),
    b"&*": lambda selector: selector.set_all_channels(True),
    b"resetchannels": lambda selector: selector.set_all_channels(False),
    b"allcommands": lambda selector: selector.set_all_commands(True),
    b"+@all": lambda selector: selector.set_all_commands(True),
    b"nocommands": lambda selector: selector.set_all_commands(False),
    b"-@all": lambda selector: selector.set_all_commands(False),
}


@dataclass(slots=True)
class User:
    """One user; a new one is off, has no password and may do nothing."""

    name: bytes  # Name, as passed to AUTH
    is_on: bool = False  # AUTH is possible; existing sessions continue even if it is not
    nopass: bool = False  # Any password is accepted
    # RESTORE checks this user's payloads (the server always does; the keyword exists for Redis's tools)
    sanitizes: bool = True
    passwords: list[bytes] = field(default_factory=list)  # SHA-256 of each password, in hexadecimal
    root: Selector = field(default_factory=Selector)  # Permissions outside parentheses
    selectors: list[Selector] = field(default_factory=list)  # Permissions in parentheses

    def changed(self, rules: Iterable[bytes]) -> "User":
        """Return a copy with rules applied, all or none."""
        user = copy.deepcopy(self)
        for rule in merged(rules):
            user.apply(rule)
        return user

    def apply(self, rule: bytes) -> None:
        """Change this user by one rule."""
        word = keyword(rule).lower()
        if not rule:
            return
        if word in _FLAGS:
            name, value = _FLAGS[word]
            setattr(self, name, value)
            if word == b"nopass":
                self.passwords.clear()
        elif word == b"resetpass":
            self.nopass = False
            self.passwords.clear()
        elif rule[:1] in {b">", b"#", b"<", b"!"}:
            self._change_password(rule)
        elif word == b"clearselectors":
            self.selectors.clear()
        elif word == b"reset":
            fresh = User(self.name)
            self.is_on, self.nopass, self.sanitizes = False, False, True
            self.passwords, self.root, self.selectors = fresh.passwords, fresh.root, fresh.selectors
        elif rule[:1] == b"(" and rule[-1:] == b")":
            selector = Selector()
            for part in rule[1:-1].split():
                self._apply_inside(selector, part, rule)
            self.selectors.append(selector)
        else:
            self.root.apply(rule)

    @staticmethod
    def _apply_inside(selector: Selector, part: bytes, whole: bytes) -> None:
        """Apply one rule of a selector in parentheses; an error names the parentheses as a whole."""
        try:
            selector.apply(part)
        except RuleError as error:
            raise RuleError(error.args[0], whole) from None

    def _change_password(self, rule: bytes) -> None:
        """Add a password (``>``) or remove one (``<``); ``#`` and ``!`` do so by its hash, for copies of users."""
        kind, word = rule[:1], rule[1:]
        hidden = kind + b"(redacted)"
        if kind in {b"#", b"!"} and not _HASH.fullmatch(word):
            raise RuleError(BAD_HASH, hidden)
        kept = word if kind in {b"#", b"!"} else digest(word)
        if kind in {b">", b"#"}:
            self.nopass = False
            if kept not in self.passwords:
                self.passwords.append(kept)
        elif kept in self.passwords:
            self.passwords.remove(kept)
        else:
            raise RuleError(NOT_KEPT, hidden)

    def accepts(self, password: bytes) -> bool:
        """True if the password is one of this user's; takes the same time for a wrong one."""
        given = digest(password)
        right = [hmac.compare_digest(given, kept) for kept in self.passwords]
        return self.is_on and (self.nopass or any(right))

    @property
    def is_open(self) -> bool:
        """True if clients of this user need no AUTH, if it is the default user."""
        return self.is_on and self.nopass

    @property
    def is_unrestricted(self) -> bool:
        """True if everything is allowed."""
        return self.root.is_unrestricted or any(each.is_unrestricted for each in self.selectors)

    def refusal(self, row: Command, argv: list[bytes]) -> Denial | None:
        """The reason why this user may not run a command; None if the user may."""
        uses = uses_of(row, argv)
        worst = Denial(1, 0)
        for selector in (self.root, *self.selectors):
            denial = selector.refusal(row, argv, uses)
            if denial is None:
                return None
            worst = max(worst, denial)
        return worst

    def reads_every_key(self, row: Command, argv: Sequence[bytes]) -> bool:
        """True if a selector lets a command read all keys."""
        return any(each.reads_every_key(row, argv) for each in (self.root, *self.selectors))

    def allows_channel(self, channel: bytes, *, by_pattern: bool) -> bool:
        """True if a selector allows a channel."""
        return any(each.allows_channel(channel, by_pattern=by_pattern) for each in (self.root, *self.selectors))

    def may_lose_listeners(self, before: "User") -> bool:
        """True if listeners of this user must be checked after a change of its rules.

        Redis intends to check if a rule about channels is missing now, but compares the addresses of the rules in
        memory. So a user that had a rule counts as having lost it. A user without one had nothing to lose, though its
        clients may listen: they subscribed as another user.
        """
        if any(each.all_channels for each in (self.root, *self.selectors)):
            return False
        return any(each.all_channels or each.channels for each in (before.root, *before.selectors))

    @property
    def flags(self) -> list[bytes]:
        """The flags, which are neither passwords nor permissions."""
        words = [b"on" if self.is_on else b"off"]
        if self.nopass:
            words.append(b"nopass")
        words.append(b"sanitize-payload" if self.sanitizes else b"skip-sanitize-payload")
        return words

    def __bytes__(self) -> bytes:
        """The rules that make this user, in the form of ACL LIST and of an ACL file."""
        words = [b"user", self.name, *self.flags, *(b"#" + kept for kept in self.passwords), bytes(self.root)]
        return b" ".join([*words, *(b"(%b)" % bytes(each) for each in self.selectors)])

    def denial_text(self, denial: Denial, row: Command, argv: Sequence[bytes], *, verbose: bool = False) -> str:
        """Return Redis's text of a refusal, without its error code."""
        if denial.rank == 1:
            return f"User {shown(self.name)} has no permissions to run the '{row.name}' command"
        if verbose:
            word = argv[denial.at].decode("utf-8", "surrogateescape")  # a bulk string, so a NUL ends nothing
            return f"User {shown(self.name)} has no permissions to access the '{word}' {denial.reason}"
        return f"No permissions to access a {denial.reason}"


_FLAGS: dict[bytes, tuple[str, bool]] = {
    b"on": ("is_on", True),
    b"off": ("is_on", False),
    b"nopass": ("nopass", True),
    b"sanitize-payload": ("sanitizes", True),
    b"skip-sanitize-payload": ("sanitizes", False),
}


class UnmatchedError(RuleError):
    """A parenthesis is not closed; ``args[1]`` is the argument with the open one.

    What to do: close the parenthesis, and quote a selector that has spaces.
    """


def merged(rules: Iterable[bytes]) -> list[bytes]:
    """Return the rules, with selectors in parentheses that span several arguments joined again."""
    found: list[bytes] = []
    inside: list[bytes] = []
    for rule in rules:
        if inside or (rule[:1] == b"(" and rule[-1:] != b")"):
            inside.append(rule)
            if rule[-1:] == b")":
                found.append(b" ".join(inside))
                inside = []
        else:
            found.append(rule)
    if inside:
        raise UnmatchedError("Unmatched parenthesis in acl selector starting at", inside[0])
    return found


def default_user() -> User:
    """Return the default user before any change: no password, everything allowed."""
    user = User(b"default")
    for rule in (b"+@all", b"~*", b"&*", b"on", b"nopass"):
        user.apply(rule)
    return user
