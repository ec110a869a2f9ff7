"""A server by its URL: what people call it, without the secrets in it."""

from dataclasses import dataclass, field

from millstream.client.url import DEFAULT_URL, without_password


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
        """The command line of a subcommand, for this server."""
        return ["millstream", *words, *(["--url", self.address] if self.address != DEFAULT_URL else [])]
