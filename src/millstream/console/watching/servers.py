"""A server by its URL: what people call it, without the secrets in it."""

from dataclasses import dataclass, field

from millstream.client.url import DEFAULT_URL, REPORT, without_password
from millstream.console.changes.actions import BY_NAME

ELSEWHERE = "SERVER"
"""Where a command line of a report's page has the URL of the server: a report takes no change, nor whoever reads it one
of another server that happens to be the usual one."""


@dataclass(frozen=True, slots=True)
class ConsoleServer:
    """One server that is looked at.

    Attributes:
        url: as given, perhaps with a password: it is never shown.
    """

    url: str = field(repr=False)

    @property
    def name(self) -> str:
        """What people call it by: its URL without secrets, and without what they do not need."""
        return without_password(self.url).partition("?")[0].removeprefix("redis://").removesuffix("/0")

    @property
    def address(self) -> str:
        """Its URL for a command line; a password is left out, as three stars."""
        return without_password(self.url)

    def command_line(self, *words: str) -> list[str]:
        """The command line of a subcommand, for this server; what a report cannot answer is for the server it is of.

        An app that is run names its server itself.
        """
        if words[0] == "run":
            return ["millstream", *words]
        only_live = " ".join(words[:2]) in BY_NAME or words[0] in {"spark", "doctor"}
        url = ELSEWHERE if only_live and self.url.startswith(REPORT) else self.address
        if words[0] == "doctor":  # its server is its argument, and without one it looks at the machine
            return ["millstream", *words, url]
        return ["millstream", *words, *(["--url", url] if url != DEFAULT_URL else [])]
