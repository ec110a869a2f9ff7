"""A node's counters, with INFO's names."""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.commands.context.host import Lookups


@dataclass(slots=True)
class CommandStats:
    """One command's counters."""

    calls: int = 0  # Number of runs
    failed: int = 0  # Number of runs that ended with an error
    rejected: int = 0  # Number of refusals before a run (arity, authentication)
    nanoseconds: int = 0  # Total run time, for INFO's average


@dataclass(slots=True)
class NodeStats:
    """A node's counters since the start or the last CONFIG RESETSTAT."""

    commands: dict[str, CommandStats] = field(default_factory=dict)  # Counters by full name (``xgroup|create``)
    errors: dict[str, int] = field(default_factory=dict)  # Error replies by code
    error_replies: int = 0  # Error replies in total
    connections: int = 0  # Sessions opened since the start
    processed: int = 0  # Commands run since the start
    lookups: Lookups = field(default_factory=Lookups)  # Keys found, not found, and expired
    retained_no_more: int = 0  # Entries that ``stream-retention`` removed
    removed_unread: int = 0  # Entries of ``retained_no_more`` that a group had not read
    dirty: int = 0  # Changes since the last save, as Redis counts them; not reset
    # Each returns its counts since its last call: name, calls, nanoseconds
    sources: list[Callable[[], list[tuple[str, int, int]]]] = field(default_factory=list)

    def collect(self) -> None:
        """Add the counts of the sources; called before the counters are shown or reset."""
        for source in self.sources:
            for name, calls, nanoseconds in source():
                if calls:
                    counters = self.command(name)
                    counters.calls += calls
                    counters.nanoseconds += nanoseconds

    def command(self, name: str) -> CommandStats:
        """The counters of one command."""
        found = self.commands.get(name)
        if found is None:
            found = self.commands[name] = CommandStats()
        return found

    def error(self, line: str) -> None:
        """Count an error reply under its code."""
        code = line.partition(" ")[0]
        self.errors[code] = self.errors.get(code, 0) + 1
        self.error_replies += 1

    def reset(self) -> None:
        """Reset the counters for CONFIG RESETSTAT."""
        self.collect()
        self.commands.clear()
        self.errors.clear()
        self.error_replies = self.connections = self.processed = self.retained_no_more = self.removed_unread = 0
        self.lookups.reset()
