"""The payloads that DUMP of Redis and Valkey makes, so that RESTORE brings keys over from them. PURE."""

from millstream.engine.keyspace import Value
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.bulk import crc64
from millstream.engine.serialization.rdb.sizes import Payload
from millstream.engine.serialization.rdb.streams import ACTIVE_TIMES
from millstream.engine.serialization.rdb.values import read_value

NEWEST = 14  # Newest accepted version of Redis's format

VALKEY = (80, 81)  # Versions of Valkey's format, which numbers its types differently from Redis

_TAIL = 10


def is_whole(payload: bytes) -> bool:
    """True if version and checksum are right."""
    version = _version(payload)
    if len(payload) <= _TAIL or not (version <= NEWEST or version in VALKEY):
        return False
    return crc64(memoryview(payload)[:-8]) == int.from_bytes(payload[-8:], "little")


def load(payload: bytes, idmp_duration: int, idmp_maxsize: int) -> Value:
    """Return the value in a payload with valid checksum."""
    source = Payload(payload[:-_TAIL])
    kind = source.byte()
    if kind > ACTIVE_TIMES and _version(payload) in VALKEY:
        raise MalformedError("a type of Valkey's that is not read")
    value = read_value(source, kind, idmp_duration, idmp_maxsize)
    source.end()
    return value


def _version(payload: bytes) -> int:
    return int.from_bytes(payload[-_TAIL:-8], "little")
