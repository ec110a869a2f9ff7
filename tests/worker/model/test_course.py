"""Crash accounting in a simulated world: entries, dying workers, and the rule that decides on each entry's run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from millstream.worker.model.retry import NO_RECORD, Failure, FailureRecord, Retry, RunMode, decide, run_mode, tries
from support import campaign


@dataclass
class Entry:
    """One entry with the server's and the failure record's state, and its outcome.

    Attributes:
        kind: ``good`` is handled, ``bad`` fails, ``killer`` kills its process, each time.
        deliveries: delivery count of the server.
        record: its failure record.
        end: its outcome, if it has one.
        failures: number of failed runs.
        crashes: number of process deaths that it caused.
        struck: number of charged process deaths that another entry caused.
        lone: number of runs without another entry in the process.
    """

    kind: str
    deliveries: int = 0
    record: FailureRecord | None = None
    end: str = ""
    failures: int = 0
    crashes: int = 0
    struck: int = 0
    lone: int = 0


class World:
    """One group with a sequence of worker processes.

    Args:
        chance: source of all random decisions.
        retry: retry policy.
        kinds: kinds of the entries.
        loses_rows: True if failure records vanish at random.
        keeps: False if the server stores no failure records.
    """

    def __init__(
        self, chance: Random, retry: Retry, kinds: list[str], *, loses_rows: bool = False, keeps: bool = True
    ) -> None:
        self.chance = chance
        self.retry = retry
        self.entries = [Entry(kind) for kind in kinds]
        self.loses_rows = loses_rows
        self.keeps = keeps

    def play(self) -> None:
        """Run until every entry has its outcome."""
        for _ in range(10_000):
            open_ = [entry for entry in self.entries if not entry.end]
            if not open_:
                return
            self.batch(self.chance.sample(open_, self.chance.randint(1, len(open_))))
        raise AssertionError(f"it goes on for ever: {self.entries}")

    def batch(self, batch: list[Entry]) -> None:
        """Let one worker claim some entries and run them until each has an outcome or the worker dies."""
        modes: dict[int, RunMode] = {}
        for entry in batch:
            entry.deliveries += 1
            if self.loses_rows and self.chance.random() < 0.3:
                entry.record = None
            found = run_mode(self.retry, entry.deliveries, entry.record, kept=self.keeps)
            if found is RunMode.TOGETHER:
                self.write(entry, replace(entry.record or NO_RECORD, uncharged=True))
                found = RunMode.NORMAL
            if found is RunMode.ALONE:
                entry.deliveries -= 1  # uncharged while it waits
            modes[id(entry)] = found
        alone = [entry for entry in batch if modes[id(entry)] is RunMode.ALONE]
        rest = [entry for entry in batch if modes[id(entry)] is not RunMode.ALONE]
        if self.together(rest, modes):
            for entry in alone:
                entry.deliveries += 1
                self.write(entry, replace(entry.record or NO_RECORD, alone=True))
                entry.lone += 1
                if not self.run(entry, []):
                    return

    def together(self, in_hand: list[Entry], modes: dict[int, RunMode]) -> bool:
        """Run entries concurrently; return False if the process dies."""
        self.chance.shuffle(in_hand)
        while in_hand:
            entry = in_hand.pop()
            if self.chance.random() < 0.1:  # a stop hands back what has not begun
                entry.deliveries -= 1
            elif modes[id(entry)] is RunMode.DEAD:
                entry.end = "dead"
            elif not self.run(entry, in_hand):
                return False
        return True

    def run(self, entry: Entry, beside: list[Entry]) -> bool:
        """Run one entry; return False if the process dies."""
        if entry.kind == "killer":
            entry.crashes += 1
            for other in beside:
                other.struck += tries(other.deliveries, other.record) > 1
            return False
        if entry.kind == "good":
            entry.end = "handled"
            return True
        entry.failures += 1
        counted = tries(entry.deliveries, entry.record)
        if decide(self.retry, Failure.ERROR, counted, 0.5).dead:
            entry.end = "dead"
        else:
            known = entry.record or NO_RECORD
            self.write(entry, replace(known, failures=known.failures + 1))
        return True

    def write(self, entry: Entry, record: FailureRecord) -> None:
        if self.keeps:
            entry.record = record


def worlds(count: int, check: Callable[[Random], None]) -> Callable[[int], int]:
    """Run a number of worlds, each from its own seed."""

    def piece(seed: int) -> int:
        for number in range(count):
            check(Random(seed * count + number))
        return count

    return piece


def whole(chance: Random) -> None:
    """Check intact records: the limit is exact for all kinds, and a bystander of a crash is charged at most once."""
    limit = chance.randint(1, 6)
    kinds = chance.choices(("good", "bad", "killer"), (6, 2, 1), k=chance.randint(1, 8))
    world = World(chance, Retry(max_deliveries=limit), kinds)
    world.play()
    for entry in world.entries:
        if entry.kind == "good":
            assert entry.end == "handled", entry
        if entry.kind == "bad":
            # tries are its failures and one charged crash of another entry
            assert entry.end == "dead", entry
            assert limit - 1 <= entry.failures <= limit, entry
            assert "killer" in kinds or entry.failures == limit, entry
        if entry.kind == "killer":
            # one more than allowed, for the crash that is not charged; that of another killer may have taken its place
            assert entry.end == "dead", entry
            lowest = limit + 1 if kinds.count("killer") == 1 else limit - 1
            assert lowest <= entry.crashes <= limit + 1, entry
            assert entry.lone >= 1, entry
        charged = tries(entry.deliveries, entry.record) - 1 - entry.failures - entry.crashes
        if entry.kind == "good":
            assert charged <= 1, entry


def holed(chance: Random) -> None:
    """Check lost or missing records: no entry dies from another's crash, and no killer lives for ever."""
    limit = chance.randint(1, 6)
    kinds = chance.choices(("good", "killer"), (6, 1), k=chance.randint(1, 8))
    keeps = chance.random() < 0.5
    world = World(chance, Retry(max_deliveries=limit), kinds, loses_rows=True, keeps=keeps)
    world.play()
    for entry in world.entries:
        assert entry.end == ("handled" if entry.kind == "good" else "dead"), entry
        assert entry.crashes <= limit + 2, entry


@pytest.mark.parametrize("check", [whole, holed])
def test_ten_thousand_worlds(check: Callable[[Random], None]) -> None:
    """In 10,000 random worlds the delivery limit is exact, and no entry dies from another entry's crash."""
    worlds(5_000, check)(0)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("check", [whole, holed])
def test_a_million_worlds(check: Callable[[Random], None]) -> None:
    """In a million random worlds the delivery limit is exact, and no entry dies from another entry's crash."""
    campaign.run(f"course-{check.__name__}", worlds(10_000, check), range(1, 51), unit="worlds")


def test_without_a_limit_a_killer_is_alone_for_ever_and_never_dead() -> None:
    """With max_deliveries=0 an entry that kills its process runs alone after two crashes, and never becomes dead."""
    retry, record, modes = Retry(max_deliveries=0), None, []
    for deliveries in range(1, 50):
        found = run_mode(retry, deliveries, record)
        if found is RunMode.TOGETHER:
            record = FailureRecord(uncharged=True)
        modes.append(found)
    assert modes == [RunMode.NORMAL, RunMode.TOGETHER, *[RunMode.ALONE] * 47]


def test_a_limit_made_lower_sets_old_failures_aside() -> None:
    """An entry with more failures than a lowered limit becomes a dead letter at its next delivery, without a run."""
    assert run_mode(Retry(max_deliveries=3), 6, FailureRecord(failures=5)) is RunMode.DEAD


@pytest.mark.parametrize(("record", "expected"), [(NO_RECORD, RunMode.ALONE), (FailureRecord(alone=1), RunMode.DEAD)])
def test_deliveries_alone_make_no_dead_letter(record: FailureRecord | None, expected: RunMode) -> None:
    """An entry over its limit without a recorded run alone first runs alone.

    With one, or far over the limit, it is dead.
    """
    retry = Retry(max_deliveries=3)
    assert {run_mode(retry, deliveries, record) for deliveries in range(4, 14)} == {expected}
    assert run_mode(retry, 14, record) is RunMode.DEAD, "a record that cannot be kept must not keep a killer alive"


@pytest.mark.parametrize("limit", [2, 5, 9])
def test_an_entry_that_ended_the_spare_alone_is_dead_whatever_its_limit(limit: int) -> None:
    """An entry that also ended the spare worker while alone becomes a dead letter, unless there is no limit."""
    retry, record = Retry(max_deliveries=limit), FailureRecord(uncharged=True, alone=4711)
    assert run_mode(retry, 3, record, ended_spare=(4711).__eq__) is RunMode.DEAD
    assert run_mode(retry, 3, record, ended_spare=(4712).__eq__) is RunMode.ALONE, "the whole machine may have stopped"
    assert run_mode(Retry(max_deliveries=0), 3, record, ended_spare=(4711).__eq__) is RunMode.ALONE


def test_the_last_failure_of_a_worker_that_died_before_its_letter_is_tried_again_alone() -> None:
    """If a worker dies before it writes the dead letter for the last failure, the entry runs once more, alone."""
    retry = Retry(max_deliveries=3)
    assert run_mode(retry, 4, FailureRecord(failures=2)) is RunMode.ALONE
    assert run_mode(retry, 5, FailureRecord(failures=2, alone=True)) is RunMode.DEAD
