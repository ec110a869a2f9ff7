"""A node with a manual clock, a log in a list, and clients that call it directly: no socket, no waiting."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.node.log import codec, rebuilding
from millstream.node.log.snapshot import payloads
from millstream.node.node import Node
from millstream.node.outcome import Outcome
from support.resp import decode

if TYPE_CHECKING:
    from millstream.commands.context.session import Session

Word = bytes | str | int

# A reply that has not come: the command waits.
WAITING = "the client waits"


class ListLog:
    """A log that keeps its records in a list.

    Attributes:
        payloads: Every record, oldest first; the first has position 1.
        snapshot: The payloads that replace the first ``rewritten`` records.
    """

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.snapshot: list[bytes] = []
        self.rewritten = 0

    def append(self, payload: bytes) -> int:
        self.payloads.append(payload)
        return len(self.payloads)

    @property
    def appended(self) -> int:
        return len(self.payloads)

    def write(self) -> int:
        return len(self.payloads)

    def sync(self) -> int:
        return len(self.payloads)

    def replay(self) -> Iterator[bytes]:
        return chain(self.snapshot, self.payloads[self.rewritten :])

    def rewrite(self) -> None:
        """Replace every record so far by a snapshot, as a rewrite of a log on disk does."""
        records = self.replay()
        wall = codec.unpack(self.payloads[-1])[0] if self.payloads else 0
        self.snapshot = list(payloads(rebuilding.from_log(records), wall))
        self.rewritten = len(self.payloads)


def to_words(words: Iterable[Word]) -> list[bytes]:
    """Convert a command line to bytes."""
    return [
        word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word for word in words
    ]


class Client:
    """One session of a :class:`World`.

    Attributes:
        session: The node's session.
        inbox: Replies that came while it waited, oldest first.
        barrier: Barrier of the last reply.
    """

    def __init__(self, world: "World", resp: int) -> None:
        self.world = world
        self.session = world.node.sessions.open(world.clock.now())
        self.session.resp = resp
        self.inbox: list[object] = []
        self.barrier = 0

    def call(self, *words: Word) -> object:
        """Run one command that must reply at once, and return its reply."""
        answer = self.send(*words)
        assert answer is not WAITING, f"{words} waits"
        return answer

    def send(self, *words: Word) -> object:
        """Run one command and return its reply, or ``WAITING``."""
        world = self.world
        outcome = world.node.execute(self.session, to_words(words), world.clock.now())
        world.deliver()
        return WAITING if outcome is None else self.open(outcome)

    def raw(self, *words: Word) -> bytes:
        """Run one command that must reply at once, and return its raw reply."""
        outcome = self.world.node.execute(self.session, to_words(words), self.world.clock.now())
        assert outcome is not None, f"{words} waits"
        self.barrier = outcome.barrier
        return b"".join(outcome.buffers)

    def open(self, outcome: Outcome) -> object:
        self.barrier = outcome.barrier
        return decode(b"".join(outcome.buffers))

    @property
    def waits(self) -> bool:
        return self.session.blocked

    def close(self) -> None:
        self.world.node.sessions.close(self.session)


class World:
    """A node and its surroundings.

    Args:
        config: Parameters that differ from the defaults, by name.
        logged: True to keep the records.

    Attributes:
        clock: Clock that the test turns.
        log: Records so far.
        node: The node itself.
    """

    def __init__(self, config: dict[str, str] | None = None, *, logged: bool = True) -> None:
        self.clock = ManualClock()
        self.log = ListLog()
        self.config = config
        self.node = Node(Config(config), self.log if logged else None)
        self._clients: dict[int, Client] = {}

    def client(self, resp: int = 2) -> Client:
        found = Client(self, resp)
        self._clients[found.session.id] = found
        return found

    def deliver(self) -> None:
        """Deliver the queued replies of other sessions to their clients."""
        sent: list[tuple[Session, Outcome]] = self.node.outbox[:]
        self.node.outbox.clear()
        for session, outcome in sent:
            found = self._clients[session.id]
            if outcome.buffers:
                found.inbox.append(found.open(outcome))
            elif session.held is not None:  # CLIENT PAUSE is over; else it must close
                argv, session.held = session.held, None
                again = self.node.execute(session, argv, self.clock.now())
                if again is not None:
                    found.inbox.append(found.open(again))
                self.deliver()

    def advance(self, ms: int) -> None:
        """Advance the clock and let the node do the work that is due."""
        self.clock.advance(ms)
        self.tick()

    def tick(self) -> None:
        self.node.tick(self.clock.now())
        self.deliver()

    def recovered(self) -> Node:
        """Return a second node, recovered from this one's records."""
        twin = Node(Config(self.config))
        twin.recover(self.log.replay())
        return twin
