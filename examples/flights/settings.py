"""Settings of one run of the demo, and the paths of its files."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import UsageError

MARKER = ".millstream-demo"
"""A folder with this file was made by the demo, so the demo may empty it."""

OURS = ("data", "logs", "receipts", "spark", "parquet", "page.html", "checks.json")
"""Files of a run in its output folder, which the next run removes."""


@dataclass(frozen=True)
class Keys:
    """Names of the streams of one run."""

    flights: str
    alerts: str
    routes: str
    prefix: str

    @classmethod
    def under(cls, prefix: str) -> "Keys":
        """Return keys that begin with ``prefix``, which is empty for the demo's own server."""
        return cls(f"{prefix}flights", f"{prefix}alerts", f"{prefix}top-routes", prefix)

    @property
    def dead(self) -> str:
        """Key of the flights' dead letters."""
        return f"{self.flights}:dead"


@dataclass(frozen=True)
class DemoSettings:
    """One run.

    Attributes:
        out: Output folder; everything on disk is inside it.
        keys: Names of the streams.
        rows: Number of the first flights to use; None for all.
        url: URL of a given server; None starts one.
        kill_server: True to SIGKILL the embedded server halfway and start it again on the same directory.
        keep: True to leave the keys on the given server.
        console: True to show the run in the browser.
        stay: True to leave server and console open at the end, until Ctrl-C.
    """

    out: Path
    keys: Keys
    rows: int | None = None
    url: str | None = field(default=None, repr=False)
    kill_server: bool = False
    keep: bool = False
    console: bool = False
    stay: bool = False

    @property
    def reports(self) -> bool:
        """Return True if workers and Spark may report to the server; a user's server must keep no reports."""
        return self.console and not self.url

    @property
    def data(self) -> Path:
        """Data directory of the embedded server."""
        return self.out / "data"

    @property
    def logs(self) -> Path:
        """Folder with one log file for each process."""
        return self.out / "logs"

    @property
    def receipts(self) -> Path:
        """Folder with one file for each worker process: the entries that it handled."""
        return self.out / "receipts"

    @property
    def parquet(self) -> Path:
        """Folder of the pipeline's tables."""
        return self.out / "parquet"

    @property
    def spark(self) -> Path:
        """Folder of the pipeline's checkpoint and of its results by batch."""
        return self.out / "spark"

    def prepare(self) -> None:
        """Create the output folder, without the files of an earlier run.

        Raises:
            UsageError: the folder has files that the demo did not make.
        """
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out} is a file: choose a folder with --out")
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / MARKER).exists():
            raise UsageError(
                f"{self.out} is not empty and was not made by the demo, so nothing in it is touched: "
                "choose another folder with --out"
            )
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / MARKER).touch()
        for name in OURS:
            path = self.out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in (self.logs, self.receipts, self.spark, self.parquet):
            folder.mkdir()
