"""Removals, decided: a group, a consumer, a stream; each with everything that is lost with it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.console.changes.plan import (
    MOST_KEPT,
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    HeldEntry,
    Step,
    Undo,
    Words,
    consumer_check,
    counted,
    delays_end,
    group_check,
    position_facts,
    put_back_command,
    stream_check,
)
from millstream.console.model.names import command_words
from millstream.console.model.streams import ConsumerStatus, GroupStatus, StreamStatus


def remove_group(
    stream: StreamStatus, group: GroupStatus, held: Sequence[HeldEntry], *, xnack: bool = False
) -> ChangePlan:
    """Remove a group with everything it knows."""
    key, name = stream.key, group.name
    kept = tuple(held) if group.pending <= MOST_KEPT else ()
    made: Words = ("XGROUP", "CREATE", key, name, group.last_delivered_id)
    if group.entries_read is not None:
        made += ("ENTRIESREAD", group.entries_read)
    position = group.last_delivered_id
    notes = [f"Its position, {position}, is forgotten: a group that is made anew begins where it is told to."]
    if group.pending:
        notes.append(
            f"{counted(group.pending)} pending {'is' if group.pending == 1 else 'are'} dropped: delivered and not "
            "acknowledged, and nobody will process them again."
        )
    if group.lag.entries != 0:
        lag = "An unknown number of entries" if group.lag.entries is None else counted(group.lag.entries).capitalize()
        notes.append(f"{lag} of the stream {'was' if group.lag.entries == 1 else 'were'} never delivered to it.")
    if group.consumers:
        notes.append("Consumers that are alive fail with NOGROUP at their next read.")
    table = (
        BeforeAfter("last delivered id", group.last_delivered_id, None),
        BeforeAfter("lag", group.lag.entries, None),
        BeforeAfter("pending", group.pending, 0),
        BeforeAfter("consumers", group.consumers, 0),
    )
    why = "" if kept or not group.pending else f"More than {MOST_KEPT} entries are pending: they cannot be put back."
    undo = Undo(
        command_words("group create", key, name, options=("--at", group.last_delivered_id)),
        (made, *(put_back_command(key, name, each, xnack=xnack) for each in kept)),
        kept,
        note=" ".join(filter(None, (why, _by_both(kept)))),
    )
    check = group_check(key, name, pending=group.pending, **position_facts(stream, group))
    steps = (Step((("XGROUP", "DESTROY", key, name),), (check,)),)
    question = f"Remove the group {name!r} of {key!r}, with {counted(group.pending)} pending?"
    facts: dict[str, object] = {"pending_dropped": group.pending, "consumers": group.consumers}
    return ChangePlan("group rm", key, name, question, table, tuple(notes), steps, undo, facts, removes=True)


def _by_both(held: Sequence[HeldEntry]) -> str:
    """The manual steps that remain after the command line that undoes the most."""
    return "Then `millstream audit undo` puts the pending entries back." if held else ""


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """The known facts about a consumer that will be removed."""

    status: ConsumerStatus  # State of the consumer, from the server
    held: tuple[HeldEntry, ...]  # Its pending entries, or the first of them where they are more than can be kept
    others: tuple[str, ...] = ()  # Names of the group's other consumers


def remove_consumer(facts: ConsumerFacts, claim_to: str | None = None) -> ChangePlan:
    """Remove a consumer, after its pending entries were moved to another, or with them."""
    status = facts.status
    key, group, name = status.stream, status.group, status.name
    if claim_to == name:
        raise ChangeRefusedError(f"--claim-to {name}: what it holds cannot be moved to the consumer that is removed")
    left = 0 if claim_to is not None else status.pending
    kept = facts.held if status.pending <= MOST_KEPT else ()
    table = (
        BeforeAfter(f"held by {name}", status.pending, 0),
        *(() if claim_to is None else (BeforeAfter(f"moved to {claim_to}", 0, status.pending),)),
        BeforeAfter("dropped from the group's pending entries", 0, left),
    )
    check = consumer_check(key, group, name, left)
    steps = (Step((("XGROUP", "DELCONSUMER", key, group, name),), (check,)),)
    why = "" if kept or not status.pending else f"More than {MOST_KEPT} entries are pending: they cannot be put back."
    made: Words = ("XGROUP", "CREATECONSUMER", key, group, name)
    undo = Undo(
        commands=(made, *(put_back_command(key, group, each) for each in kept)),
        held=kept if left else (),
        note=why if status.pending else _MADE_ANEW,
    )
    question = f"Remove the consumer {name!r} of {group!r} on {key!r}?"
    if status.pending:
        does = "drop what it holds" if claim_to is None else f"move what it holds to {claim_to!r} first"
        question = f"{question[:-1]}, which holds {counted(status.pending)}, and {does}?"
    figures: dict[str, object] = {"pending_moved": status.pending - left, "pending_dropped": left}
    return ChangePlan("consumer rm", key, group, question, table, _leaving(facts, claim_to), steps, undo, figures)


_MADE_ANEW = "Nothing is to be undone: the next read by that name makes it anew."


def _leaving(facts: ConsumerFacts, claim_to: str | None) -> tuple[str, ...]:
    """The other effects of removing a consumer."""
    status, notes = facts.status, []
    if status.pending and claim_to is None:
        other = next(iter(facts.others), "OTHER")
        notes.append(
            f"The server drops {counted(status.pending)} that it holds from the group's pending entries: nobody will "
            f"process them again. --claim-to {other} moves them first."
        )
    delayed = sum(one.waits for one in facts.held)
    if claim_to is not None and delayed:
        notes.append(delays_end(delayed))
    if claim_to is not None and claim_to not in facts.others:
        notes.append(f"There is no consumer {claim_to!r} in the group yet: it is made by getting them.")
    seconds = status.idle_ms / 1000
    notes.append(f"It last asked for something {seconds:.0f} s ago: one that is alive is made anew by its next read.")
    return tuple(notes)


def remove_stream(stream: StreamStatus) -> ChangePlan:
    """Remove a stream with its groups."""
    key, groups = stream.key, stream.groups
    notes = [f"{counted(stream.length).capitalize()} {'is' if stream.length == 1 else 'are'} gone for good."]
    notes += [
        f"The group {group.name!r} goes, with {counted(group.pending)} pending and a lag of "
        f"{'unknown' if group.lag.entries is None else group.lag.entries}."
        for group in groups
    ]
    if "groups" in stream.missing:
        notes.append(f"Its groups are not known: {stream.missing['groups']}")
    table = (
        BeforeAfter("entries", stream.length, 0),
        BeforeAfter("groups", len(groups), 0),
        BeforeAfter("pending", stream.pending, 0),
    )
    checks = (stream_check(key, length=stream.length, last_generated_id=stream.last_id, groups=len(groups)),)
    undo = Undo(note="It cannot be undone; `millstream export` keeps a copy, which `millstream import` brings back.")
    question = f"Remove the stream {key!r} with {counted(stream.length)} and {len(groups)} groups?"
    facts: dict[str, object] = {"entries": stream.length, "groups": len(groups), "pending": stream.pending}
    steps = (Step((("DEL", key),), checks),)
    return ChangePlan("stream rm", key, "", question, table, tuple(notes), steps, undo, facts, removes=True)
