"""Verdicts on entries that a recovery holds, carried out: acknowledged, released to anybody, or buried.

Each is done in a way that may be done again after a kill, since what is done is held no more. A dead letter and its
acknowledgement are one transaction, which watches the dead-letter stream and then looks whether the entry is still
held: so an entry is dead at most once, whoever else buries it. A letter that the server takes into the transaction
and then refuses has its entry pending again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.client import emulate
from millstream.client.capabilities import Capabilities
from millstream.client.deadletter import DeadLetter, hindrance, pack, take_history
from millstream.client.slots import beside
from millstream.errors import UsageError
from millstream.spark import failpoints
from millstream.spark.connection import routing
from millstream.spark.connection.connection import Command, ErrorReply
from millstream.spark.connection.retry import lost_contact
from millstream.spark.connection.router import Router, checked
from millstream.spark.group.pending import PAGE, Holdings
from millstream.spark.model.offsets import parse_id

WORDS = ("ack", "release", "dead")

_BURIED_TOGETHER = 50
_TRIES = 1000


class Verdict(NamedTuple):
    """What is to become of an entry.

    Attributes:
        word: one of :data:`WORDS`.
        reason: of a dead letter.
    """

    word: str
    reason: str = ""


@dataclass
class Outcome:
    """What became of entries.

    Attributes:
        acked: acknowledged by verdict.
        released: given back by verdict.
        dead: in the dead-letter stream.
        unjudged: given back because they got no verdict.
        deleted: no longer in the stream, and acknowledged.
        taken: claimed or acknowledged by others meanwhile; their verdicts were not carried out.
    """

    acked: int = 0
    released: int = 0
    dead: int = 0
    unjudged: int = 0
    deleted: int = 0
    taken: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.acked + self.released + self.dead + self.unjudged + self.deleted + self.taken


class Court:
    """Carries out the verdicts on what one consumer holds.

    Args:
        asker: the connection.
        holdings: the pending entries.
        consumer: who holds them.
        capabilities: of the server.
        dead: the dead-letter stream.
    """

    def __init__(self, asker: Router, holdings: Holdings, consumer: str, capabilities: Capabilities, dead: str) -> None:
        self._asker = asker
        self._holdings = holdings
        self._consumer = consumer
        self._capabilities = capabilities
        self._dead = dead
        self._stream, self._group = holdings.key, holdings.group
        self._tries = beside(self._stream, "tries", self._group)  # workers' record of failures

    def carry_out(
        self,
        deliveries: Mapping[bytes, int],
        verdicts: Mapping[bytes, Verdict],
        outcome: Outcome,
        told: Callable[[], None],
    ) -> None:
        """Settle entries.

        Args:
            deliveries: all of them, in the order of their ids, with how often each was delivered.
            verdicts: on those that got one.
            outcome: counts it.
            told: called now and then, as the counts grow.

        Raises:
            UsageError: the server refuses; what was settled before stays so, and the rest is held.
        """
        ids = list(deliveries)
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            mine = self._mine(page)
            outcome.taken += len(page) - len(mine)
            sorted_out: dict[str, list[bytes]] = {word: [] for word in (*WORDS, "")}
            for ident in mine:
                verdict = verdicts.get(ident)
                sorted_out[verdict.word if verdict else ""].append(ident)
            outcome.acked += self._ack(sorted_out["ack"])
            failpoints.reach("settling")
            there = self._there(sorted_out[""])
            outcome.deleted += self._ack([ident for ident in sorted_out[""] if ident not in there])
            outcome.unjudged += self._release(there)
            outcome.released += self._release(sorted_out["release"])
            told()
            for first in range(0, len(sorted_out["dead"]), _BURIED_TOGETHER):
                batch = sorted_out["dead"][first : first + _BURIED_TOGETHER]
                self._bury({ident: verdicts[ident].reason for ident in batch}, outcome)
                told()

    def _mine(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those that are still held."""
        pages = self._holdings.pending(self._consumer, parse_id(ids[0].decode()), parse_id(ids[-1].decode()))
        held = {row[0] for page in pages for row in page}
        return [ident for ident in ids if ident in held]

    def _there(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those whose entries are still in the stream."""
        rows = self._asker.ask([("XRANGE", self._stream, ident, ident) for ident in ids])
        return [ident for ident, row in zip(ids, rows, strict=True) if checked(row)]

    def _ack(self, ids: Sequence[bytes]) -> int:
        if not ids:
            return 0
        replies = self._asker.ask([("XACK", self._stream, self._group, *ids), ("HDEL", self._tries, *ids)])
        checked(replies[0])
        return len(ids)

    def _release(self, ids: Sequence[bytes]) -> int:
        if not ids:
            return 0
        # Charged, which keeps the counts as they are: claiming them counted no delivery that could be taken back.
        move: Any = emulate.release(self._capabilities, self._group, 0, charge=True).command(self._stream, ids)
        checked(self._asker.ask([move])[0])
        return len(ids)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def _bury(self, reasons: Mapping[bytes, str], outcome: Outcome) -> None:
        sent: set[bytes] = set()
        left = list(reasons)
        for _ in range(_TRIES):
            try:
                letters = self._look(left, sent, outcome)
                left = list(letters)
                if not left or self._send(letters, reasons):
                    outcome.dead += len(left)
                    if left:
                        self._asker.ask([("HDEL", self._tries, *left)])
                    return
                sent.clear()  # somebody wrote to the dead-letter stream after the look, so nothing of it ran
            except Exception as lost:
                if not lost_contact(lost):
                    raise
                if not isinstance(lost, routing.Redirected):  # then nothing ran
                    sent.update(left)
        raise UsageError(f"{self._dead} changed {_TRIES} times before its letters could be written; try again")

    def _look(
        self, ids: Sequence[bytes], sent: Iterable[bytes], outcome: Outcome
    ) -> dict[bytes, tuple[list[bytes], int]]:
        """Watch, then look: fields and deliveries of the entries that are still held."""
        looks: list[Command] = [("WATCH", self._dead), ("TYPE", self._dead), ("XINFO", "STREAM", self._dead)]
        for ident in ids:
            looks.append(("XPENDING", self._stream, self._group, ident, ident, 1))
            looks.append(("XRANGE", self._stream, ident, ident))
        watched, kind, info, *replies = self._asker.ask(looks)  # there is no info of a stream that is yet to be made
        for reply in (watched, kind, *replies):
            checked(reply)
        if told := hindrance(kind, info, len(ids)):
            raise UsageError(
                f"{self._dead} {told}, so nothing can be buried there: the entries stay pending; name another "
                "dead-letter stream"
            )
        found: dict[bytes, tuple[list[bytes], int]] = {}
        gone = []
        for ident, pending, rows in zip(ids, replies[::2], replies[1::2], strict=True):
            if not pending and ident in sent:
                outcome.dead += 1  # the transaction whose reply was lost had run
            elif not pending or pending[0][1] != self._consumer.encode():
                outcome.taken += 1
            elif not rows:
                gone.append(ident)
            else:
                found[ident] = (rows[0][1], pending[0][3])
        if not found:
            self._asker.ask([("UNWATCH",)])
        outcome.deleted += self._ack(gone)
        return found

    def _send(self, letters: Mapping[bytes, tuple[list[bytes], int]], reasons: Mapping[bytes, str]) -> bool:
        """Write the letters and acknowledge their entries; False when somebody came first.

        Raises:
            UsageError: the server refuses; every entry has its letter or is pending.
        """
        commands: list[Command] = [("MULTI",)]
        for ident, (flat, deliveries) in letters.items():
            commands.append(("XADD", self._dead, "*", *pack(self._letter(ident, flat, deliveries, reasons[ident]))))
            commands.append(("XACK", self._stream, self._group, ident))
        commands.append(("EXEC",))
        failpoints.reach("burying")
        replies = [checked(reply) for reply in self._asker.once(commands)]
        if replies[-1] is None:
            return False
        added, acked = replies[-1][::2], replies[-1][1::2]
        failed = [reply for reply in added if isinstance(reply, ErrorReply)]
        if failed:
            fates = zip(letters.items(), added, acked, strict=True)
            self._put_back({ident: n for (ident, (_, n)), letter, ack in fates if letter in failed and ack == 1})
            raise UsageError(
                f"{self._dead}: the server refused {len(failed)} of {len(letters)} letters, whose entries stay "
                f"pending: {failed[0]}"
            )
        for reply in acked:
            checked(reply)
        return True

    def _put_back(self, deliveries: Mapping[bytes, int]) -> None:
        """Make entries pending again, as often delivered as before: EXEC acknowledged them, and their letter failed."""
        moves: list[Any] = [
            (*emulate.recount(self._group, self._consumer, count).command(self._stream, [ident]), "FORCE")
            for ident, count in deliveries.items()
        ]
        for reply in self._asker.ask(moves):
            checked(reply)

    def _letter(self, ident: bytes, flat: list[bytes], deliveries: int, reason: str) -> DeadLetter:
        fields, history = take_history(flat)
        return DeadLetter(
            fields=tuple(fields),
            stream=self._stream,
            id=ident.decode(),
            group=self._group,
            consumer=self._consumer,
            deliveries=deliveries,
            reason="reject",
            error=reason,
            traceback="",
            published_ms=int(ident.partition(b"-")[0]),
            died_ms=time.time_ns() // 1_000_000,
            history=history,
        )
