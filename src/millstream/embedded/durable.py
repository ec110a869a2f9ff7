"""The additional parts of a store with a directory."""

import time
from contextlib import closing
from dataclasses import dataclass

from millstream.commands.admin.info import LogFacts
from millstream.embedded.spilling import StoreSpilling
from millstream.node.durability.disk_guard import DiskGuard
from millstream.node.durability.group_commit import Fsync, GroupCommit
from millstream.node.facts import log_facts
from millstream.node.log.packs import bring_packs_back
from millstream.node.log.rewriting import Rewriter
from millstream.node.tiering.reading import ColdRunner
from millstream.persistence.log import Log


@dataclass(frozen=True, slots=True)
class Durable:
    """The log, and everything that works on it."""

    log: Log  # The log of the records
    disk_guard: DiskGuard  # Watches the disk's free space
    rewriter: Rewriter  # Rewrites the log
    commit: GroupCommit  # Due writes and syncs
    spilling: StoreSpilling  # Moves entries to packs while a tier is on
    recovered: int  # Number of records that were read at the start

    def facts(self, policy: Fsync) -> LogFacts:
        """Return the facts of the log for INFO."""
        return log_facts(
            self.log,
            self.disk_guard,
            self.rewriter,
            policy=policy,
            recovered=self.recovered,
            synced_at=time.time() - (time.monotonic() - self.commit.synced_at),
            slow_syncs=self.commit.slow_syncs,
        )

    def close(self, cold: ColdRunner) -> None:
        """End the threads, write everything to disk and release the directory."""
        with closing(self.log), closing(cold):  # whatever the others raise
            self.spilling.stop()
            self.rewriter.stop()
            bring_packs_back(self.log)

    def abandon(self, cold: ColdRunner) -> None:
        """Release the parent's resources in a forked child, and write nothing."""
        self.spilling.abandon()
        self.rewriter.abandon()
        cold.close()
        self.log.abandon()
