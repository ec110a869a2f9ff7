"""A change that is planned for a page: its preview, with the form that confirms exactly this plan."""

from dataclasses import replace

from millstream.client.line import Line
from millstream.errors import MillstreamError, UsageError
from millstream.ops.actions import Action, NothingChosenError
from millstream.ops.every import BY_NAME
from millstream.ops.making import Prepared
from millstream.ops.plan import ChangeRefusedError
from millstream.ops.spread import prepare
from millstream.ops.watching.watch import Reading
from millstream.web.page import Asked, at_field


class FormError(ChangeRefusedError):
    """A form of a change is incomplete or invalid; the message gives the reason.

    What to do: correct the form, which the page shows again.
    """

    def __init__(self, action: Action, field: str, text: str) -> None:
        super().__init__(text)
        self.action = action
        self.field = field


def who_of(asked: Asked) -> str:
    """Return the user's name, if the console knows it."""
    return asked.user or "a user of the console"


async def plan_of(asked: Asked, action: Action, line: Line) -> Prepared:
    """Plan the change of a form. Its parameters return with the facts that were read, and confirm this exact plan."""
    words = {word.name: word for word in action.words if word.form}
    texts = {
        name: text
        for name, text in asked.words.items()
        if name in words and (text or words[name].flag or words[name].required)  # the other fields are empty
    }
    try:
        return await prepare(action, line, texts, kept=True, who=who_of(asked))
    except NothingChosenError:
        raise FormError(action, "", "Nothing is selected. Select rows, or fill in a field.") from None
    except UsageError as error:
        raise FormError(action, *at_field(action.words, str(error))) from None


async def planned_reading(asked: Asked, action: Action) -> Reading[Prepared]:
    """Return the plan of a form's change; one reading serves all viewers of the same form."""
    question = ("change", who_of(asked), tuple(sorted(asked.words.items())))
    return await asked.watch.read(question, lambda line: plan_of(asked, action, line))


def form_fields(found: Prepared) -> dict[str, str]:
    """Return the fields of the form that requests the change again."""
    return {"do": found.plan.action, **found.texts}


async def planned_here(asked: Asked, words: dict[str, str]) -> tuple[Prepared | None, str]:
    """Return the plan of a change for a page about its object, or None and the reason of the refusal."""
    try:
        return (await planned_reading(replace(asked, words=words), BY_NAME[words["do"]])).value, ""
    except MillstreamError as error:
        return None, str(error)
