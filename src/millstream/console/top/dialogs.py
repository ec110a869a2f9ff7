"""What is asked of a person in a window of its own: which change, its words, whether to make it; and the keys."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from millstream.console.changes.actions import Action
from millstream.console.forms.fields import FormField
from millstream.texts import in_one_line

_LEAVE = Binding("escape", "leave", "leave it")


class ActionDialog(ModalScreen[Action | None]):
    """Which change; what is closed is greyed out and says why.

    Args:
        actions: that fit where somebody is.
        closed: action -> why it is not open.
        about: of what, in words.
    """

    BINDINGS: ClassVar[list[BindingType]] = [_LEAVE]

    def __init__(self, actions: Sequence[Action], closed: Mapping[str, str], about: str) -> None:
        super().__init__()
        self._actions = list(actions)
        self._reasons = closed
        self._about = about

    def compose(self) -> ComposeResult:
        """A list of them."""
        with Vertical(classes="dialog"):
            yield Static(Content(in_one_line(f"Change something: {self._about or 'everything'}")), classes="title")
            yield OptionList(*map(self._option, self._actions), compact=True)
            yield Static(Content("Each shows first what would happen, and how it is undone."), classes="note")
            yield Footer(show_command_palette=False, compact=True)

    def _option(self, action: Action) -> Option:
        why = self._reasons.get(action.name)
        parts: list[str | Content | tuple[str, str]] = [(action.name, "" if why else "bold"), f"  {action.says}"]
        parts += [f"\n  not open: {in_one_line(why)}" if why else f"\n  $ {action.line}"]
        return Option(Content.assemble(*parts), disabled=why is not None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter."""
        self.dismiss(self._actions[event.option_index])

    def action_leave(self) -> None:
        """Escape."""
        self.dismiss(None)


class FormDialog(ModalScreen[dict[str, str] | None]):
    """The words of a change.

    Args:
        action: the change.
        fields: what is asked for.
        words: what is known already.
    """

    BINDINGS: ClassVar[list[BindingType]] = [_LEAVE, Binding("enter", "done", "preview", priority=True)]

    def __init__(self, action: Action, fields: Sequence[FormField], words: Mapping[str, str]) -> None:
        super().__init__()
        self._action = action
        self._fields = list(fields)
        self._words = dict(words)

    def compose(self) -> ComposeResult:
        """An input for each."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._action.name), classes="title")
            yield Static(Content(f"{self._action.says}\n$ {self._action.line}"), classes="note")
            for field in self._fields:
                if field.flag:
                    yield Checkbox(
                        Content(field.hint), field.name in self._words, compact=True, id=f"word-{field.name}"
                    )
                    continue
                yield Static(Content(f"{field.title}{' (needed)' if field.needed else ''}"))
                known = self._words.get(field.name, "")
                # a name of other bytes cannot be typed: it stays as it is unless something is typed instead
                shown = known if known.isprintable() else ""
                hint = f"{in_one_line(known)} (as it is)" if known and not shown else field.hint
                yield Input(shown, placeholder=hint, compact=True, id=f"word-{field.name}")
            yield Static("", id="why", classes="hot")
            yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """The first word that lacks is the one to be typed."""
        lacking = [field for field in self._fields if field.needed and not self._words.get(field.name)]
        for field in [*lacking, *self._fields][:1]:
            self.query_one(f"#word-{field.name}", Input).focus()

    def action_done(self) -> None:
        """Enter: in the last input, or where nothing needed lacks."""
        found = dict(self._words)
        for field in self._fields:
            if field.flag:
                found.pop(field.name, None)
                found |= {field.name: "1"} if self.query_one(f"#word-{field.name}", Checkbox).value else {}
                continue
            text = self.query_one(f"#word-{field.name}", Input).value.strip()
            if text:
                found[field.name] = text
            elif found.get(field.name, "").isprintable():
                found.pop(field.name, None)
        lacking = [field for field in self._fields if field.needed and not found.get(field.name)]
        if lacking:
            self.query_one("#why", Static).update(Content(f"It needs {lacking[0].title}."))
            self.query_one(f"#word-{lacking[0].name}", Input).focus()
            return
        self.dismiss(found)

    def action_leave(self) -> None:
        """Escape."""
        self.dismiss(None)


class KeysDialog(ModalScreen[None]):
    """The keys, and what may be typed.

    Args:
        lines: of text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "leave", "close")]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The text."""
        with Vertical(classes="dialog"):
            yield Static(Content("Keys"), classes="title")
            with VerticalScroll():
                yield Static(Content("\n".join(self._lines)))
            yield Footer(show_command_palette=False, compact=True)

    def action_leave(self) -> None:
        """Escape."""
        self.dismiss(None)
