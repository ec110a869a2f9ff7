"""Redaction of replies before the report records them: values of entries, addresses, secrets. Pure.

Names stay (streams, groups, consumers, workers, fields, users), since a report without names is of no use. Ids, times
and figures stay too. Everything that is not known to be harmless is removed.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from millstream.client.dead_letter.letter import PREFIX
from millstream.client.jsontext import parse_record
from millstream.client.partitions.layout import LayoutError, descriptor_key, parse_layout
from millstream.client.partitions.lease import parse_owner
from millstream.ops.audit import KEY as AUDIT
from millstream.spark.monitoring.store import PROGRESS, QUERIES
from millstream.worker.registry.protocol import worker_key

Reply = Any

CLIENTS = 1000
"""Limit of connections that are listed."""

_AUDIT = frozenset(b"change action stream group who user via done moved undo".split())
_LETTER = frozenset(
    PREFIX + name for name in b"fields stream id group consumer deliveries reason published_at died_at".split()
)
_ERROR = re.compile(rb"([A-Za-z_][\w.]{0,80}): .", re.DOTALL)
_ID = re.compile(rb"\(?[0-9]{1,20}-[0-9]{1,20}|[-+$>*~=]")
_OPTIONS = frozenset(
    b"MAXLEN MINID LIMIT NOMKSTREAM COUNT BLOCK STREAMS GROUP NOACK IDLE JUSTID FORCE RETRYCOUNT LASTID TIME MKSTREAM "
    b"ENTRIESREAD CREATE SETID DESTROY CREATECONSUMER DELCONSUMER STREAM GROUPS CONSUMERS FULL GET SET RESETSTAT "
    b"MATCH TYPE EX PX NX XX KEEPTTL SYNC ASYNC".split()
)
_COUNTED = frozenset(b"MAXLEN MINID LIMIT COUNT BLOCK IDLE RETRYCOUNT ENTRIESREAD".split())
_BEFORE_ID = frozenset(b"NOMKSTREAM MAXLEN MINID LIMIT ~ =".split())  # arguments of XADD before the id
_SECRET = re.compile(
    rb"pass|auth|secret|key|token|user|acl|host|ip$|bind|replicaof|slaveof|announce|dir$|file|socket|path"
)
_PLAIN = re.compile(rb"[a-z0-9 _-]{0,200}|[0-9]+\.[0-9]+", re.IGNORECASE)
_CLIENT = re.compile(rb"\b(l?addr=)(\S*?)(:[0-9]+)?(?= |$)")
_INFO = re.compile(rb"(\b(?:ip|bind)=|^master_host:|^(?:executable|config_file):)([^,\r\n]*)", re.MULTILINE)
_ELSEWHERE = re.compile(rb"((?:MOVED |ASK )?[0-9]+ )(\S+:[0-9]+)")
_IPV4 = re.compile(rb"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b")


class Redactor:
    """Remover of private values from replies."""

    def __init__(self, *, payloads: bool = False, addresses: bool = False) -> None:
        self._payloads = payloads
        self._addresses = addresses
        self._masks: dict[bytes, bytes] = {}
        self._names: set[bytes] = set()

    def redacted(self, words: Sequence[bytes], reply: Reply) -> Reply:
        """Return the reply to a command as the report may record it."""
        if isinstance(reply, Exception):
            return self._refusal(reply)
        if reply is None:
            return reply
        name = b" ".join(words[:2]) if words[0] in {b"XINFO", b"SLOWLOG", b"CONFIG", b"CLIENT"} else words[0]
        self._learn(name, words, reply)
        if name in {b"XRANGE", b"XREVRANGE"}:
            return [self._entry(words[1], row) for row in reply]
        if name == b"XINFO STREAM":
            return self._info(words[2], reply)
        if name == b"HGETALL" and words[1] == QUERIES.encode():
            return [part if at % 2 == 0 else _without_error(part, "error") for at, part in enumerate(reply)]
        if name == b"GET" and words[1].startswith(worker_key("").encode()):
            return _without_error(reply, "last_error", "error")
        if name == b"GET":
            return reply if _describes_partitions(words[1], reply) else _commit(reply)
        special: Callable[[Reply], Reply] | None = {
            b"SLOWLOG GET": self._slow,
            b"CONFIG GET": _config,
            b"CLIENT LIST": self._clients,
            b"INFO": self._figures,
        }.get(name)
        return reply if special is None else special(reply)

    def address(self, raw: bytes) -> bytes:
        """Return an address, or the placeholder that replaces it everywhere in the report."""
        if self._addresses or not raw:
            return raw
        return self._masks.setdefault(raw, b"address-%d" % (len(self._masks) + 1))

    def _refusal(self, error: Exception) -> Exception:
        """Return an error without addresses; a cluster's redirection contains one."""
        place = _ELSEWHERE.fullmatch(str(error).encode(errors="surrogateescape"))
        if place is None:
            text = str(error).encode(errors="surrogateescape")
            return (
                error
                if self._addresses
                else type(error)(self._without_addresses(text).decode(errors="surrogateescape"))
            )
        return type(error)((place[1] + self._place(place[2])).decode(errors="surrogateescape"))

    def _learn(self, name: bytes, words: Sequence[bytes], reply: Reply) -> None:
        """Collect names of streams, groups and consumers, which may stay in a slow command."""
        if name == b"SCAN":
            self._names.update(reply[1])
        elif name == b"XPENDING" and len(words) == 3:
            self._names.update(row[0] for row in reply[3] or ())
        elif name in {b"XINFO GROUPS", b"XINFO CONSUMERS"}:
            self._names.update(words[2:])
            self._names.update(dict(zip(row[::2], row[1::2], strict=True))[b"name"] for row in reply)

    def _info(self, key: bytes, flat: Reply) -> Reply:
        found = list(flat)
        for at in range(0, len(found), 2):
            if found[at] in {b"first-entry", b"last-entry"} and found[at + 1]:
                found[at + 1] = self._entry(key, found[at + 1])
            elif found[at] == b"entries":
                found[at + 1] = [self._entry(key, row) for row in found[at + 1]]
        return found

    def _entry(self, key: bytes, row: Reply) -> Reply:
        if self._payloads:
            return row
        flat = list(row[1])
        flat[1::2] = [_value(key, name, value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
        return [row[0], flat]

    def _slow(self, rows: Reply) -> Reply:
        found = []
        for number, at, took, words, *client in rows:
            where = [self._place(part) if each == 0 else part for each, part in enumerate(client)]
            found.append([number, at, took, words if self._payloads else self._words(words), *where])
        return found

    def _words(self, words: Sequence[bytes]) -> list[bytes]:
        """Return a command's arguments; those that are not names, ids or options are replaced by their size."""
        shown, ids = list(words[:1]), words[0][:1].upper() == b"X"
        values = _values_at(words)
        for at, word in enumerate(words[1:], 1):
            place = ids and (_ID.fullmatch(word) or (_is_counted(words, at) and word.isdigit()))
            plain = at < values and (word.upper() in _OPTIONS or place)
            shown.append(word if plain or word in self._names else size_of(word))
        return shown

    def _place(self, raw: bytes) -> bytes:
        host, colon, port = raw.rpartition(b":")
        return self.address(host) + colon + port if colon else self.address(raw)

    def _clients(self, text: bytes) -> bytes:
        lines = text.split(b"\n")[:CLIENTS]
        masked = (_CLIENT.sub(lambda one: one[1] + self.address(one[2]) + (one[3] or b""), each) for each in lines)
        return self._without_addresses(b"\n".join(masked))

    def _without_addresses(self, text: bytes) -> bytes:
        return text if self._addresses else _IPV4.sub(lambda one: self.address(one[0]), text)

    def _figures(self, text: bytes) -> bytes:
        if self._addresses:
            return text
        return self._without_addresses(_INFO.sub(lambda one: one[1] + self.address(one[2]), text))


def _values_at(words: Sequence[bytes]) -> int:
    """Return the index of an XADD's first field (fields may be named like options); the end of any other command."""
    if words[0].upper() != b"XADD":
        return len(words)
    for at, word in enumerate(words[2:], 2):
        if word.upper() not in _BEFORE_ID and not _is_counted(words, at):
            return at + 1
    return len(words)


def _is_counted(words: Sequence[bytes], at: int) -> bool:
    """Return True if an argument is the figure or the id of the option before it."""
    before = words[at - 1].upper()
    if before in {b"~", b"="}:
        before = words[at - 2].upper()
    return before in _COUNTED


def size_of(value: bytes) -> bytes:
    """Return the replacement of a removed value, with its size."""
    return b"(%d bytes)" % len(value)


def _value(key: bytes, name: bytes, value: bytes) -> bytes:
    """Return a field's value if it is one of Millstream's own that shows nothing of an entry, otherwise its size."""
    if key == AUDIT.encode():
        return value if name in _AUDIT else size_of(value)
    if key == PROGRESS.encode():
        return _class(value) if name == b"error" else value
    if name in _LETTER and len(value) <= 300:
        return value
    if name == PREFIX + b"error":
        return _class(value)
    return b"[]" if name == PREFIX + b"history" else size_of(value)


def _class(error: bytes) -> bytes:
    """Return an error's type without its text, which may quote an entry."""
    found = _ERROR.match(error)
    return size_of(error) if found is None else found[1] + b": " + size_of(error[found.end(1) + 2 :])


def _without_error(record: bytes, *names: str) -> bytes:
    """Return a JSON record of Millstream without its error's text; any other record becomes its size."""
    try:
        found = parse_record(record)
        place = found
        for name in names[:-1]:
            place = place[name] or {}
        if isinstance(text := place.get(names[-1]), str):
            place[names[-1]] = _class(text.encode(errors="surrogateescape")).decode()
    except (ValueError, TypeError, AttributeError, KeyError):
        return size_of(record)
    return json.dumps(found).encode()


def _describes_partitions(key: bytes, value: bytes) -> bool:
    """Return True for a record of partitions or of a partition's owner: both have only names and numbers."""
    if b":owner:" in key:
        return parse_owner(value) is not None
    if b":owned:" in key:
        return value.isdigit()
    try:
        stream = parse_record(value)["stream"]
        return key == descriptor_key(stream).encode() and parse_layout(stream, value) is not None
    except (ValueError, TypeError, KeyError, LayoutError):
        return False


def _commit(record: bytes) -> bytes:
    """Return a sink's commit record, which has only keys and figures; any other value becomes its size."""
    try:
        found = parse_record(record)
        return json.dumps({name: found[name] for name in ("version", "parts")}).encode()
    except (ValueError, TypeError, KeyError):
        return size_of(record)


def _config(flat: Reply) -> Reply:
    """Return parameters with values that are numbers or plain words; secrets and locations are masked by name."""
    found = list(flat)
    for at in range(0, len(found), 2):
        name, value = found[at].lower(), found[at + 1]
        if value and (_SECRET.search(name) or not _PLAIN.fullmatch(value)):
            found[at + 1] = b"(set)"
    return found
