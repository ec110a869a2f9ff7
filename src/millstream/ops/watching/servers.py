"""The server of a URL, with a name for people that contains no secrets."""

from dataclasses import dataclass, field

from millstream.client.url import DEFAULT_URL, REPORT
from millstream.ops.every import BY_NAME
from millstream.printable import has_password, without_password

ELSEWHERE = "SERVER"
"""Placeholder for the server's URL in command lines on a report's page.

A report accepts no change, and its reader must not change another server that happens to be the default.
"""

A_CONTEXT = "NAME"
"""Placeholder for a context's name in command lines, for a server whose URL has a password.

No command line contains a password, and a line without a server could run on another server.
"""


@dataclass(frozen=True, slots=True)
class ConsoleServer:
    """One server that the console shows."""

    url: str = field(repr=False)  # URL as given, perhaps with a password; never shown
    context: str = ""  # Name of the context that gave the URL; empty if none

    @property
    def name(self) -> str:
        """The name for people: the URL without secrets and default parts."""
        return without_password(self.url).partition("?")[0].removeprefix("redis://").removesuffix("/0")

    @property
    def address(self) -> str:
        """The URL for display; three stars replace a password."""
        return without_password(self.url)

    @property
    def has_secret(self) -> bool:
        """True if the URL has a password, so that no command line can contain it."""
        return has_password(self.url)

    @property
    def argument(self) -> str:
        """The argument that names the server in a command line that takes servers as arguments."""
        if self.has_secret:
            return f"context:{self.context or A_CONTEXT}"
        return ELSEWHERE if self.url.startswith(REPORT) else self.url

    def command_line(self, *words: str) -> list[str]:
        """Return a subcommand's command line for this server; on a report, commands for a server get a placeholder.

        An app that is run names its server itself.
        """
        if words[0] == "run":
            return ["millstream", *words]
        if words[0] == "doctor":  # its server is an argument; without one it checks the machine
            return ["millstream", *words, self.argument]
        at = words.index("--") if "--" in words else len(words)  # after "--", an option would be a name
        return ["millstream", *words[:at], *self._options(words), *words[at:]]

    def _options(self, words: tuple[str, ...]) -> list[str]:
        if self.has_secret:
            return ["--context", self.context or A_CONTEXT]
        only_live = " ".join(words[:2]) in BY_NAME or words[0] == "spark"
        url = self.argument if only_live else self.url
        return ["--url", url] if url != DEFAULT_URL else []
