"""What a node counts, in the words of INFO."""

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.commands.context.context import Lookups


@dataclass(slots=True)
class CommandStats:
    """One command's counters.

    Attributes:
        calls: times it ran.
        failed: times it ran and answered an error.
        rejected: times it was refused before running (arity, authentication).
        nanoseconds: time spent in it, for the average INFO shows.
    """

    calls: int = 0
    failed: int = 0
    rejected: int = 0
    nanoseconds: int = 0


@dataclass(slots=True)
class NodeStats:
    """A node's counters since the start or the last CONFIG RESETSTAT.

    Attributes:
        commands: by full name (``xgroup|create``).
        errors: error replies by code.
        error_replies: error replies in all.
        connections: sessions ever opened.
        processed: commands ever run.
        lookups: keys found, missed and expired.
        dirty: changes since the last save, as Redis counts them; not reset.
        sources: tell what they have counted by themselves since they were last asked: name, calls, nanoseconds.
    """

    commands: dict[str, CommandStats] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    error_replies: int = 0
    connections: int = 0
    processed: int = 0
    lookups: Lookups = field(default_factory=Lookups)
    dirty: int = 0
    sources: list[Callable[[], list[tuple[str, int, int]]]] = field(default_factory=list)

    def collect(self) -> None:
        """Take in what the sources have counted; called before the counters are shown or reset."""
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
        """CONFIG RESETSTAT."""
        self.collect()
        self.commands.clear()
        self.errors.clear()
        self.error_replies = self.connections = self.processed = 0
        self.lookups.reset()
