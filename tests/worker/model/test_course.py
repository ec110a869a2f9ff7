"""The charges for a crash, in a world without sockets: entries, workers that die, and the rule for who runs how."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from millstream.worker.model.retry import NO_RECORD, Failure, FailureRecord, Retry, RunMode, decide, run_mode, tries
from support import campaign


@dataclass
class Entry:
    """One entry, as the server and the record have it, and what it came to.

    Attributes:
        kind: ``good`` is handled, ``bad`` fails, ``killer`` kills its process, each time.
        deliveries: The server's count.
        record: Its row.
        end: Its end, if it ended.
        failures: Runs that failed.
        crashes: Times that the process died by its own doing.
        struck: Times that the process died by another's doing while the entry was in hand and charged.
        lone: Runs with no other entry in the process.
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
    """One group and one worker process after the other.

    Args:
        chance: decides everything.
        retry: the policy.
        kinds: of the entries.
        loses_rows: True when rows of the record vanish now and then.
        keeps: False when the server takes no record.
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
        """Until every entry has ended."""
        for _ in range(10_000):
            open_ = [entry for entry in self.entries if not entry.end]
            if not open_:
                return
            self.batch(self.chance.sample(open_, self.chance.randint(1, len(open_))))
        raise AssertionError(f"it goes on for ever: {self.entries}")

    def batch(self, batch: list[Entry]) -> None:
        """One worker claims some entries and runs them until they have an outcome or it dies."""
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
                entry.deliveries -= 1  # taken back while it waits
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
        """Run entries beside each other; False when the process dies."""
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
        """Run one entry; False when the process dies."""
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
    """A campaign's piece: so many worlds, each from a seed of its own."""

    def piece(seed: int) -> int:
        for number in range(count):
            check(Random(seed * count + number))
        return count

    return piece


def whole(chance: Random) -> None:
    """Records that stay: the limit is exact for all kinds, and what was beside a crash pays at most once."""
    limit = chance.randint(1, 6)
    kinds = chance.choices(("good", "bad", "killer"), (6, 2, 1), k=chance.randint(1, 8))
    world = World(chance, Retry(max_deliveries=limit), kinds)
    world.play()
    for entry in world.entries:
        if entry.kind == "good":
            assert entry.end == "handled", entry
        if entry.kind == "bad":
            # its tries are failures, and crashes of others beside it, of which only one is charged
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
    """Rows that vanish, or a server that takes none: nothing dies of another's crash, and no killer lives for ever."""
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
    """The limit is exact, and nothing dies of another's crash, in any order of crashes, claims and failures."""
    worlds(5_000, check)(0)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("check", [whole, holed])
def test_a_million_worlds(check: Callable[[Random], None]) -> None:
    """The same, a hundred times as many."""
    campaign.run(f"course-{check.__name__}", worlds(10_000, check), range(1, 51), unit="worlds")


def test_without_a_limit_a_killer_is_alone_for_ever_and_never_dead() -> None:
    """max_deliveries=0: two crashes in company, then it is alone each time, however often."""
    retry, record, modes = Retry(max_deliveries=0), None, []
    for deliveries in range(1, 50):
        found = run_mode(retry, deliveries, record)
        if found is RunMode.TOGETHER:
            record = FailureRecord(uncharged=True)
        modes.append(found)
    assert modes == [RunMode.NORMAL, RunMode.TOGETHER, *[RunMode.ALONE] * 47]


def test_a_limit_made_lower_sets_old_failures_aside() -> None:
    """Eight failures were allowed, now three are: the entry is dead at its next delivery, without a run."""
    assert run_mode(Retry(max_deliveries=3), 6, FailureRecord(failures=5)) is RunMode.DEAD


@pytest.mark.parametrize(("record", "expected"), [(NO_RECORD, RunMode.ALONE), (FailureRecord(alone=1), RunMode.DEAD)])
def test_deliveries_alone_make_no_dead_letter(record: FailureRecord | None, expected: RunMode) -> None:
    """Workers may be killed between their claim and its run: beyond its limit it runs alone first."""
    retry = Retry(max_deliveries=3)
    assert {run_mode(retry, deliveries, record) for deliveries in range(4, 14)} == {expected}
    assert run_mode(retry, 14, record) is RunMode.DEAD, "a record that cannot be kept must not keep a killer alive"


@pytest.mark.parametrize("limit", [2, 5, 9])
def test_an_entry_that_ended_the_spare_alone_is_dead_whatever_its_limit(limit: int) -> None:
    """It ended a worker too: where the supervisor went on, the process did not end for another reason."""
    retry, record = Retry(max_deliveries=limit), FailureRecord(uncharged=True, alone=4711)
    assert run_mode(retry, 3, record, ended_spare=(4711).__eq__) is RunMode.DEAD
    assert run_mode(retry, 3, record, ended_spare=(4712).__eq__) is RunMode.ALONE, "the whole machine may have stopped"
    assert run_mode(Retry(max_deliveries=0), 3, record, ended_spare=(4711).__eq__) is RunMode.ALONE


def test_the_last_failure_of_a_worker_that_died_before_its_letter_is_tried_again_alone() -> None:
    """Three tries, two failures on record, the third not: nobody knows whether it failed or crashed."""
    retry = Retry(max_deliveries=3)
    assert run_mode(retry, 4, FailureRecord(failures=2)) is RunMode.ALONE
    assert run_mode(retry, 5, FailureRecord(failures=2, alone=True)) is RunMode.DEAD
