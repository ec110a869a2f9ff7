"""Scripts that a server runs: sent by their hash, and in full if the server does not have them cached."""

from collections.abc import Sequence
from hashlib import sha1

from redis.exceptions import NoScriptError

from millstream.client.line import Command, Line, Reply
from millstream.paths import packaged

Word = bytes | str | int | float


class ServerScript:
    """A Lua script that is sent by its hash."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def beside(cls, package: str, name: str) -> "ServerScript":
        """Load the script from a file of a package."""
        return cls(packaged(package, name))

    def command(self, keys: Sequence[str], words: Sequence[Word], *, whole: bool = False) -> Command:
        """Return the command that runs the script: EVALSHA, or EVAL with the ``whole`` text."""
        return (("EVAL", self.text) if whole else ("EVALSHA", self.sha)) + (len(keys), *keys, *words)

    async def call(self, line: Line, keys: Sequence[str], words: Sequence[Word]) -> Reply:
        """Run the script and return its reply."""
        try:
            return await line.call(*self.command(keys, words))
        except NoScriptError:
            return await line.call(*self.command(keys, words, whole=True))
