"""The life of an entry as a table of states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.worker.model.lifecycle import FINAL, LEASED, TABLE, AlreadySettledError, Event, State, step

OUTCOMES = {Event.ACK, Event.RELEASE, Event.RETRY, Event.DIE}


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_an_entry_gets_at_most_one_outcome(events: list[Event]) -> None:
    """An entry reaches one final state and never leaves it, in any order of events."""
    state, ended, outcomes = State.BUFFERED, None, 0
    for event in events:
        try:
            after = step(state, event)
        except (AlreadySettledError, AssertionError):
            continue
        outcomes += event in OUTCOMES and after is not State.LOST
        if ended is not None:
            assert after is ended
        state = after
        if state in FINAL:
            ended = state
    assert outcomes <= 1


@pytest.mark.parametrize("state", [state for state in State if state not in FINAL])
def test_every_state_leads_to_an_end(state: State) -> None:
    """A final state is reachable from every state, so no entry can get stuck."""
    seen, todo = set(), {state}
    while todo:
        here = todo.pop()
        seen.add(here)
        todo |= set(TABLE[here].values()) - seen
    assert seen & FINAL


@pytest.mark.parametrize("state", [State.ACKING, State.RELEASING, State.RETRYING, State.DYING, State.ACKED])
@pytest.mark.parametrize("event", sorted(OUTCOMES, key=lambda event: event.name))
def test_a_second_outcome_is_an_error_that_says_so(state: State, event: Event) -> None:
    """Settling a message twice is an error that names its state."""
    with pytest.raises(AlreadySettledError, match=state.name.lower()):
        step(state, event)


@pytest.mark.parametrize("event", sorted(OUTCOMES, key=lambda event: event.name))
def test_an_outcome_for_a_lost_entry_is_heard_by_nobody(event: Event) -> None:
    """An outcome for an entry that another consumer owns is never sent."""
    assert step(State.LOST, event) is State.LOST


def test_what_is_not_settled_is_leased() -> None:
    """Every state in which the worker owns the entry renews its lease. A left entry is not renewed."""
    assert frozenset(State) - FINAL - {State.LEFT} == LEASED
