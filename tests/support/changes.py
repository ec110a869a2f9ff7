"""Changes planned from the text that a user enters."""

from millstream.client.line import Line
from millstream.ops.every import BY_NAME
from millstream.ops.making import Prepared
from millstream.ops.plan import Counting
from millstream.ops.spread import prepare


async def planned(
    line: Line, name: str, key: str = "", group: str = "", /, tell: Counting | None = None, **texts: str
) -> Prepared:
    """Plan the change with the name."""
    where = {"key": key, "group": group}
    return await prepare(BY_NAME[name], line, {**{word: text for word, text in where.items() if text}, **texts}, tell)
