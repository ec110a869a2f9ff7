"""Idempotent adding (Redis 8.6): the messages that each producer added, within the limits of the stream.

PURE. A producer that got no reply sends its message again, under the same message id. The reply is the first entry's
id. Memory is bounded twice: by the age of the message and by the number of messages per producer. So "once" is promised
only for retries within both limits.

Expiry goes by the age of the *entry's id*, in a job that runs about once a second; a lookup does not expire anything.
So the result does not depend on the clock at the lookup, and a log replays it. Deleting or trimming an entry does not
remove its message.

Source: https://redis.io/docs/latest/commands/xadd/ (IDMP, IDMPAUTO) and the server's behaviour.
"""

import xxhash

_MASK = 2**64 - 1
# Bytes of a producer and a message apart from their names, measured on CPython 3.11
_PRODUCER, _MESSAGE = 350, 180


class Idempotence:
    """The messages of one stream's producers."""

    __slots__ = ("added", "duplicates", "duration", "footprint", "maxsize", "producers")

    def __init__(self, duration: int, maxsize: int) -> None:
        self.duration = duration  # Seconds for which a message is remembered
        self.maxsize = maxsize  # Number of messages remembered for each producer
        # Entry id by producer id and message id, oldest first; change it only through the methods
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self.footprint = 0  # Bytes of the producers and messages
        self.added = 0  # Number of messages remembered since the stream was created
        self.duplicates = 0  # Number of additions refused as duplicates

    def find(self, producer: bytes, message: bytes) -> int | None:
        """Return the id of the entry that a message became, or None if the message is not recorded."""
        messages = self.producers.get(producer)
        return None if messages is None else messages.get(message)

    def remember(self, producer: bytes, message: bytes, entry_id: int) -> int:
        """Record a new message, and drop the producer's oldest one above the limit. Return the growth in bytes."""
        before = self.footprint
        messages = self._of(producer)
        # A replica may still have the message: it becomes the newest again. Updating a dictionary's item would keep its
        # position, but the first item must be the oldest
        if message in messages:
            self._forget(messages, message)
        messages[message] = entry_id
        self.footprint += _MESSAGE + len(message)
        self.added += 1
        while len(messages) > self.maxsize:
            self._forget(messages, next(iter(messages)))
        return self.footprint - before

    def fill(self, producer: bytes, messages: dict[bytes, int]) -> None:
        """Add a producer with its stored messages, oldest first."""
        mine = self._of(producer)
        for message, entry_id in messages.items():
            if message not in mine:
                self.footprint += _MESSAGE + len(message)
            mine[message] = entry_id

    def _of(self, producer: bytes) -> dict[bytes, int]:
        found = self.producers.get(producer)
        if found is None:
            found = self.producers[producer] = {}
            self.footprint += _PRODUCER + len(producer)
        return found

    def _forget(self, messages: dict[bytes, int], message: bytes) -> None:
        del messages[message]
        self.footprint -= _MESSAGE + len(message)

    def configure(self, duration: int, maxsize: int) -> None:
        """Set both limits; a change drops all producers, but not the totals."""
        if (duration, maxsize) != (self.duration, self.maxsize):
            self.duration, self.maxsize = duration, maxsize
            self.producers, self.footprint = {}, 0

    def has_expired(self, now: int) -> bool:
        """True if :meth:`expire` would remove anything at this wall time."""
        bound = now - self.duration * 1000
        # The first message of each producer is its oldest, so checking that one is enough
        return any(not messages or next(iter(messages.values())) >> 64 <= bound for messages in self.producers.values())

    def expire(self, now: int) -> None:
        """Drop each producer's messages, oldest first, with an entry id older than the duration."""
        bound = now - self.duration * 1000
        for producer, messages in list(self.producers.items()):
            # Stops at the first recent message: one with an older id behind it stays until its turn
            while messages:
                oldest = next(iter(messages))
                if messages[oldest] >> 64 > bound:
                    break
                self._forget(messages, oldest)
            if not messages:
                del self.producers[producer]
                self.footprint -= _PRODUCER + len(producer)

    def tracked(self) -> int:
        """Number of messages recorded now."""
        return sum(map(len, self.producers.values()))

    def copy(self) -> "Idempotence":
        """An independent copy."""
        twin = Idempotence(self.duration, self.maxsize)
        twin.producers = {producer: dict(messages) for producer, messages in self.producers.items()}
        twin.added, twin.duplicates, twin.footprint = self.added, self.duplicates, self.footprint
        return twin


def content_digest(fields: list[bytes]) -> bytes:
    """Return a message id made from the content (IDMPAUTO), equal to Redis's: replicas find messages by it.

    Each pair is hashed with the length of its name; otherwise ``a bc`` and ``ab c`` would be one message. The pairs'
    hashes are combined by addition and by exclusive or. So the id depends on how often a pair occurs, but not on the
    order.
    """
    sums = [0, 0]
    mixed = [0, 0]
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        pair = xxhash.xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        # Each half is a 64-bit number of C, so no carry goes from one to the other
        for at, half in enumerate((pair & _MASK, pair >> 64)):
            sums[at] = sums[at] + half & _MASK
            mixed[at] ^= half
    # Crosswise, and rotated by one bit, as Redis combines them
    low, high = sums[0] ^ _rotated(mixed[1]), sums[1] ^ _rotated(mixed[0])
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _rotated(half: int) -> int:
    return (half << 1 | half >> 63) & _MASK
