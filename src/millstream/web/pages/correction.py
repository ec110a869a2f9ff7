"""The correction of a dead letter: its entry as an editable document."""

from millstream.client.dead_letter.letter import dead_key
from millstream.errors import UsageError
from millstream.ops.letters import reading
from millstream.ops.payloads.editing import document_of, fields_from
from millstream.ops.plan import ChangeRefusedError
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import closed_actions, command_line

LARGEST = 200_000
"""Largest size of a document that a page can edit, in characters. The command line has no limit."""


async def correction_page(asked: Asked) -> WebPage:
    """Return the page with the entry of a letter as an editable document, or an edited one with its error."""
    key, line = asked.word("key"), asked.watch.line
    try:
        key = await reading.place_in_parts(line, key, asked.entry_id("ids")) or key
        one, before = await reading.editable(line, key, asked.entry_id("ids"))
    except UsageError as error:  # the entry is not a dead letter
        raise ChangeRefusedError(str(error)) from None
    letter = one.letter
    assert letter is not None
    document = document_of(before)
    written, problem = asked.words.get("document"), ""
    if written is not None:
        try:
            fields_from(written, before)
        except ValueError as reason:
            problem = str(reason)
    facts = {
        "stream": key,
        "letter": one.id,
        "error": letter.error,
        "document": document if len(document) <= LARGEST else None,
        "problem": problem or None,
    }
    view = {
        "key": key,
        "letter": letter,
        "id": one.id,
        "text": document if written is None else written,
        "too_large": len(document) > LARGEST,
        "problem": problem,
        "closed": (await closed_actions(asked, key)).get("dead edit", ""),
    }
    place = () if dead_key(key) == key else ("--key", key)
    shell = [command_line(asked, f"dead {verb}", key, one.id, options=place) for verb in ("edit", "show")]
    return WebPage("correcting", "dead edit", facts, view, shell, live=False, status=400 if problem else 200)
