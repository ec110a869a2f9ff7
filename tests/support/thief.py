"""A server whose reply to one request is lost, with the request executed or not."""

import asyncio
from collections.abc import Callable


class Thief:
    """Proxy that passes on the first request with a word and drops the reply.

    Args:
        port: Port of the server.
        word: Word in the request.
        through: False to drop the request as well, as a connection does that breaks before it.
        then: Function called before the connection breaks.
        for_good: True to refuse connections from then on.
    """

    def __init__(
        self,
        port: int,
        word: bytes,
        *,
        through: bool = True,
        then: Callable[[], object] = lambda: None,
        for_good: bool = False,
    ) -> None:
        self._port = port
        self._word = word
        self._through = through
        self._then = then
        self._for_good = for_good
        self.stolen = 0
        self.port = 0

    async def __aenter__(self) -> "Thief":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(self._copy(theirs, writer))
        try:
            while data := await reader.read(1 << 20):
                # b"EVAL\r\n" is how the worker leaves its scripts with the server
                if self._word in data and b"\r\nEVAL\r\n" not in data and not self.stolen:
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    if self._through:
                        ours.write(data)
                    self.stolen += not self._through or len(await theirs.read(1 << 20)) > 0  # it was carried out
                    self._then()
                    if self._for_good:
                        self._server.close()
                    return
                ours.write(data)
        except ConnectionError:
            return  # the other end has closed the connection
        finally:
            back.cancel()
            writer.close()
            ours.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            writer.write(data)
        writer.close()
