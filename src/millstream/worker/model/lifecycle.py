"""The life of one entry in a worker, as a state table. Pure.

::

    BUFFERED --start--> RUNNING --ack----> ACKING    --confirm--> ACKED
        |                  |-----release-> RELEASING --confirm--> RELEASED   (claimable at once)
        |                  |-----retry---> RETRYING  --confirm--> WAITING    (claimable when due)
        |                  |-----die-----> DYING     --confirm--> DEAD       (in the dead-letter stream)
        |                  '-----leave---> LEFT      (manual ack: the handler returned without an outcome)
        |-----release--> RELEASING (given back without a run); retry (limited), die (delivered too often) as above
    any but the last column --lose--> LOST (another consumer owns it, or it is gone)

Until ``confirm`` the server has the entry pending, so a crash at any point only means another delivery. No state leads
to two outcomes: a second outcome is an :class:`AlreadySettledError`. An outcome after ``lose`` leaves the entry LOST,
so nothing is sent for an entry that belongs to another consumer.
"""

from enum import IntEnum

from millstream.errors import UsageError


class State(IntEnum):
    """The state of an entry; see the table above."""

    BUFFERED = 0
    RUNNING = 1
    LEFT = 2
    ACKING = 3
    RELEASING = 4
    RETRYING = 5
    DYING = 6
    ACKED = 7
    RELEASED = 8
    WAITING = 9
    DEAD = 10
    LOST = 11


class Event(IntEnum):
    """An event in the life of an entry."""

    START = 0
    ACK = 1
    RELEASE = 2
    RETRY = 3
    DIE = 4
    LEAVE = 5
    CONFIRM = 6
    LOSE = 7


class AlreadySettledError(UsageError):
    """An entry was given a second outcome, for example a second ack.

    What to do: give each entry one outcome. With ``ack="manual"``, ack at most once.
    """


_OUTCOMES = {
    Event.ACK: State.ACKING,
    Event.RELEASE: State.RELEASING,
    Event.RETRY: State.RETRYING,
    Event.DIE: State.DYING,
}

TABLE: dict[State, dict[Event, State]] = {
    State.BUFFERED: {
        Event.START: State.RUNNING,
        Event.RELEASE: State.RELEASING,
        Event.RETRY: State.RETRYING,
        Event.DIE: State.DYING,
        Event.LOSE: State.LOST,
    },
    State.RUNNING: {**_OUTCOMES, Event.LEAVE: State.LEFT, Event.LOSE: State.LOST},
    State.LEFT: {**_OUTCOMES, Event.LOSE: State.LOST},
    State.ACKING: {Event.CONFIRM: State.ACKED, Event.LOSE: State.LOST},
    State.RELEASING: {Event.CONFIRM: State.RELEASED, Event.LOSE: State.LOST},
    State.RETRYING: {Event.CONFIRM: State.WAITING, Event.LOSE: State.LOST},
    State.DYING: {Event.CONFIRM: State.DEAD, Event.LOSE: State.LOST},
    State.ACKED: {},
    State.RELEASED: {},
    State.WAITING: {},
    State.DEAD: {},
    # The handler may still be running, but its outcome is ignored
    State.LOST: dict.fromkeys((*_OUTCOMES, Event.LEAVE, Event.LOSE), State.LOST),
}

#: States of an entry whose outcome is known here but not confirmed by the server.
UNCONFIRMED = frozenset(_OUTCOMES.values())

#: States in which the worker must keep other consumers from claiming the entry.
LEASED = frozenset({State.BUFFERED, State.RUNNING}) | UNCONFIRMED

#: Final states: the server has nothing more to do for the entry.
FINAL = frozenset({State.ACKED, State.RELEASED, State.WAITING, State.DEAD, State.LOST})


def step(state: State, event: Event) -> State:
    """Return the next state."""
    after = TABLE[state].get(event)
    if after is None:
        if event in _OUTCOMES or event is Event.LEAVE:
            raise AlreadySettledError(f"this entry is settled already ({state.name.lower()}); settle it once")
        raise AssertionError(f"{event.name} cannot happen to an entry that is {state.name}")
    return after
