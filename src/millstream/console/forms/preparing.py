"""A form's change shown, and confirmed.

What a form says is forgotten with its preview. Who confirms sends the digest of what was shown; the plan is made anew,
and where it is another one by now, nothing is done but to show that one.
"""

import time

from millstream import times
from millstream.client.line import Line
from millstream.console.changes.gather import Counting
from millstream.console.changes.making import Prepared
from millstream.console.changes.plan import ChangeRefusedError
from millstream.console.forms.makers import MAKERS, FormWords, read_place
from millstream.console.reading.asking import calls, checked
from millstream.errors import UsageError


async def prepare(line: Line, words: FormWords, tell: Counting | None = None) -> Prepared:
    """The change that a form says, ready to be previewed.

    Args:
        line: to the server.
        words: of the form.
        tell: called with how many entries were counted so far.

    Raises:
        ChangeRefusedError: a word is wrong or lacks, there is no such change, the user may not.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    maker = MAKERS.get(words.get("do", ""))
    if maker is None:
        raise ChangeRefusedError(f"no form makes the change {words.get('do', '')!r}; these: {', '.join(MAKERS)}")
    try:
        return await maker(line, words, tell)
    except UsageError as error:  # a word of the form
        raise ChangeRefusedError(str(error)) from None


def is_agreed(found: Prepared, digest: str | None) -> bool:
    """Whether a change is there to be made, and is the one that was shown.

    Args:
        found: as it is planned now.
        digest: of the plan that was shown; None to make it whatever it is by now.
    """
    return not found.nothing and digest in {None, found.plan.digest}


async def settled(line: Line, words: FormWords, who: str) -> dict[str, str]:
    """The words of a form; a time that is counted from now is the moment it stood for.

    What is chosen among dead letters ends with the newest there is: one that dies while somebody reads the preview is
    none of them.

    Args:
        line: to the server.
        words: of the form.
        who: asks, for what is kept of it: never what the form says.

    Raises:
        ChangeRefusedError: a word is no place or time.
        NotReadableError: the server does not let us look for dead letters.
        Disconnected: no answer came.
    """
    found, do = dict(words), words.get("do", "")
    for name in ("to", "at"):
        if name in found and do in {"group rewind", "group create"}:
            place = read_place(found[name])
            found[name] = str(place.ms) if place.kind == "time" else found[name]
    if do == "group rewind":
        found |= await _held_place(line, found)
    if do == "stream trim" and found.get("before", "").strip():
        found["minid"] = f"{_moment(found.pop('before'))}-0"
    if do in {"worker pause", "pending dead"}:  # a preview and its confirmation are of one moment
        found |= {"by": who, "at_ms": found.get("at_ms", str(_now()))}
    if do in {"dead retry", "dead rm"}:
        for name in ("since", "until"):
            if found.get(name, "").strip():
                found[name] = str(_moment(found[name]))
        if not found.get("ids", "").strip() and not found.get("until", "").strip():
            found["until"] = str(await _behind_newest(line, found.get("key", "")))
    return found


async def _held_place(line: Line, words: FormWords) -> dict[str, str]:
    """The words that keep a rewind as it was shown, where the group moves on before somebody has read the preview."""
    plan = (await prepare(line, words)).plan
    if "even_if_moved" not in words and not plan.live:
        return {}
    # an id: "-100" would be another place by then; a name "--to" comes after the option
    return {"even_if_moved": "1", "to": plan.words[plan.words.index("--to", 3) + 1]}


async def _behind_newest(line: Line, key: str) -> int:
    """The millisecond behind the newest dead letter."""
    (rows,) = await calls(line.near(key), [("XREVRANGE", key, "+", "-", "COUNT", 1)])
    newest = checked(rows, key)
    return int(newest[0][0].partition(b"-")[0]) + 1 if newest else 0


def _moment(text: str) -> int:
    """Milliseconds of a time."""
    try:
        return max(times.instant(text.strip(), _now()), 0)
    except ValueError as reason:
        raise ChangeRefusedError(f"{text!r} is no time: {reason}") from None


def _now() -> int:
    return time.time_ns() // 1_000_000
