"""A server by its URL: its name for people, without the secrets in it."""

from dataclasses import dataclass, field

from millstream.client.url import DEFAULT_URL, REPORT
from millstream.ops.every import BY_NAME
from millstream.printable import has_password, without_password

ELSEWHERE = "SERVER"
"""The server's URL in a command line of a report's page: a report takes no change, and its reader must not change
another server that happens to be the usual one.
"""

A_CONTEXT = "NAME"
"""Where a command line has the name of a context, for a server with a password that the console was given otherwise: no
command line takes a password, and without a server it might be run on another one."""


@dataclass(frozen=True, slots=True)
class ConsoleServer:
    """One server that is looked at."""

    url: str = field(repr=False)  # URL as given, perhaps with a password: it is never shown
    context: str = ""  # The name of the context it was given by; empty for none

    @property
    def name(self) -> str:
        """The name for people: its URL without secrets, and without the default parts."""
        return without_password(self.url).partition("?")[0].removeprefix("redis://").removesuffix("/0")

    @property
    def address(self) -> str:
        """Its URL, to be read; a password is left out, as three stars."""
        return without_password(self.url)

    @property
    def has_secret(self) -> bool:
        """True if its URL has a password in it, so that no command line can have the URL."""
        return has_password(self.url)

    @property
    def argument(self) -> str:
        """The word that names it on a command line that takes servers as arguments."""
        if self.has_secret:
            return f"context:{self.context or A_CONTEXT}"
        return ELSEWHERE if self.url.startswith(REPORT) else self.url

    def command_line(self, *words: str) -> list[str]:
        """The command line of a subcommand, for this server; what a report cannot answer is for the server it is of.

        An app that is run names its server itself.
        """
        if words[0] == "run":
            return ["millstream", *words]
        if words[0] == "doctor":  # its server is its argument, and without one it looks at the machine
            return ["millstream", *words, self.argument]
        at = words.index("--") if "--" in words else len(words)  # after it, an option would be a name
        return ["millstream", *words[:at], *self._options(words), *words[at:]]

    def _options(self, words: tuple[str, ...]) -> list[str]:
        if self.has_secret:
            return ["--context", self.context or A_CONTEXT]
        only_live = " ".join(words[:2]) in BY_NAME or words[0] == "spark"
        url = self.argument if only_live else self.url
        return ["--url", url] if url != DEFAULT_URL else []
