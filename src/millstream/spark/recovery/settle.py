"""Decisions on entries that a recovery holds, carried out: acknowledged, released to any consumer, or dead.

Each step may be repeated after a kill, since settled entries are no longer held. Dead letters are written by
:func:`millstream.client.dead_letter.transaction.DeadLetterTransaction`, as the worker writes its own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream import failpoints
from millstream.client import emulate
from millstream.client.capabilities import Capabilities
from millstream.client.dead_letter.letter import DeadLetter, take_history
from millstream.client.dead_letter.transaction import (
    BATCH,
    DeadLetterRoute,
    DeadLetterTransaction,
    Exchange,
    Fate,
    LettersRefusedError,
)
from millstream.client.slots import beside
from millstream.errors import UsageError
from millstream.spark.connection import routing
from millstream.spark.connection.connection import Reply
from millstream.spark.connection.retry import lost_contact
from millstream.spark.connection.router import Router, checked
from millstream.spark.group.pending import PAGE, PendingEntries
from millstream.spark.model.offsets import parse_id

WORDS = ("ack", "release", "dead")
"""The possible decisions, in ``recover(verdict=)`` and in the function's column ``verdict``."""

_TRIES = 1000


class EntryDecision(NamedTuple):
    """The decision about an entry."""

    word: str  # One of :data:`WORDS`
    reason: str = ""  # Reason for a dead letter


@dataclass
class RecoveryCounts:
    """Numbers of entries by their outcome."""

    acked: int = 0  # Number of entries acknowledged by decision
    released: int = 0  # Number of entries released by decision
    dead: int = 0  # Number of entries moved to the dead-letter stream
    unjudged: int = 0  # Number of entries released without a decision
    deleted: int = 0  # Number of acknowledged entries that were no longer in the stream
    taken: int = 0  # Number of entries that others claimed or acknowledged meanwhile; their decisions had no effect

    @property
    def total(self) -> int:
        """Number of all settled entries."""
        return self.acked + self.released + self.dead + self.unjudged + self.deleted + self.taken


@dataclass(slots=True)
class _Dying:
    """An entry to set aside, in the form of the dead-letter transaction."""

    id: bytes
    deliveries: int
    letter: DeadLetter
    unsettled: bool = True


class Settler:
    """Carries out the decisions on one consumer's entries."""

    def __init__(
        self, asker: Router, holdings: PendingEntries, consumer: str, capabilities: Capabilities, dead: str
    ) -> None:
        self._asker = asker
        self._holdings = holdings
        self._consumer = consumer
        self._capabilities = capabilities
        self._stream, self._group = holdings.key, holdings.group
        self._failures = beside(self._stream, "tries", self._group)  # key of the failures that workers record
        self._route = DeadLetterRoute(self._stream, self._group, consumer, dead, failures=self._failures)

    def carry_out(
        self,
        deliveries: Mapping[bytes, int],
        decisions: Mapping[bytes, EntryDecision],
        counts: RecoveryCounts,
        progress: Callable[[], None],
    ) -> None:
        """Settle entries by their decisions."""
        ids = list(deliveries)
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            mine = self._mine(page)
            counts.taken += len(page) - len(mine)
            decided: dict[str, list[bytes]] = {word: [] for word in (*WORDS, "")}
            for ident in mine:
                decision = decisions.get(ident)
                decided[decision.word if decision else ""].append(ident)
            counts.acked += self._ack(decided["ack"])
            failpoints.reach("settling")
            there = self._there(decided[""])
            counts.deleted += self._ack([ident for ident in decided[""] if ident not in there])
            counts.unjudged += self._release(there)
            counts.released += self._release(decided["release"])
            progress()
            for first in range(0, len(decided["dead"]), BATCH):
                batch = decided["dead"][first : first + BATCH]
                self._write_letters({ident: decisions[ident].reason for ident in batch}, deliveries, counts)
                progress()

    # The decisions may be minutes old: while the function ran, other consumers may have claimed the entries
    def _mine(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the entries that are still held."""
        pages = self._holdings.pending(self._consumer, parse_id(ids[0].decode()), parse_id(ids[-1].decode()))
        held = {row[0] for page in pages for row in page}
        return [ident for ident in ids if ident in held]

    def _there(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the ids of entries that are still in the stream."""
        rows = self._asker.ask([("XRANGE", self._stream, ident, ident) for ident in ids])
        return [ident for ident, row in zip(ids, rows, strict=True) if checked(row)]

    def _ack(self, ids: Sequence[bytes]) -> int:
        if not ids:
            return 0
        replies = self._asker.ask([("XACK", self._stream, self._group, *ids), ("HDEL", self._failures, *ids)])
        checked(replies[0])
        return len(ids)

    def _release(self, ids: Sequence[bytes]) -> int:
        if not ids:
            return 0
        # With ``charge`` the count stays: the recovery's claim counted no delivery that should be taken back.
        move: Any = emulate.release(self._capabilities, self._group, 0, charge=True).command(self._stream, ids)
        checked(self._asker.ask([move])[0])
        return len(ids)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def _write_letters(
        self, reasons: Mapping[bytes, str], deliveries: Mapping[bytes, int], counts: RecoveryCounts
    ) -> None:
        """Set entries aside; entries that are no longer in the stream have nothing to keep, and are acknowledged."""
        rows = self._asker.ask([("XRANGE", self._stream, ident, ident) for ident in reasons])
        fields = {ident: row[0][1] for ident, row in zip(reasons, map(checked, rows), strict=True) if row}
        gone = [ident for ident in reasons if ident not in fields]
        ours = self._mine(gone) if gone else []  # a worker that has claimed an entry meanwhile still has its fields
        counts.taken += len(gone) - len(ours)
        counts.deleted += self._ack(ours)
        entries = [
            _Dying(ident, deliveries[ident], self._letter(ident, flat, deliveries[ident], reasons[ident]))
            for ident, flat in fields.items()
        ]

        def report(entry: _Dying, fate: Fate) -> None:
            if fate is not Fate.OURS:
                entry.unsettled = False
                counts.dead += fate is Fate.DEAD
                counts.taken += fate is Fate.LOST

        transaction = DeadLetterTransaction(self._route, {}, report)
        for _ in range(_TRIES):
            try:
                done = self._drive(transaction.by_transaction(entries, _TRIES))
            except LettersRefusedError as refused:
                raise self._explained(refused, len(entries)) from None
            if done:
                return
            if done is False:
                break
        raise UsageError(f"{self._route.dead} changed {_TRIES} times before its letters could be written; try again")

    def _drive(self, exchange: Exchange[bool]) -> bool | None:
        """Send the commands of an exchange: a transaction once, and anything else until it gets a reply.

        Return None if the connection broke at the transaction: only then can the exchange start again. At any other
        command the server was away for all the time of the retries, so the recovery ends. It would otherwise wait as
        long a thousand times.
        """
        replies: list[Reply] | None = None
        try:
            while True:
                commands: list[Any] = [tuple(command) for command in exchange.send(replies)]
                if commands[0] != ("MULTI",):
                    replies = self._asker.ask(commands)
                    continue
                failpoints.reach("writing_dead")
                try:
                    replies = self._asker.once(commands)
                except routing.Redirected:
                    replies = None  # no command ran, since the keys have moved to another node
                except Exception as lost:
                    if not lost_contact(lost):
                        raise
                    return None
        except StopIteration as end:
            return bool(end.value)

    def _explained(self, refused: LettersRefusedError, letters: int) -> Exception:
        """Return the error for ``recover``'s caller: the reason why no letters could be written, and the remedy."""
        dead = self._route.dead
        if refused.hindrance is not None:
            return UsageError(
                f"{dead} {refused.hindrance}, so no dead letter can be written there: the entries stay pending; name "
                "another dead-letter stream"
            )
        if refused.failed:
            return UsageError(
                f"{dead}: the server refused {refused.failed} of {letters} letters, whose entries stay pending: "
                f"{refused}"
            )
        return routing.refusal(refused.reply, f"the server refused a command: {refused}")

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
