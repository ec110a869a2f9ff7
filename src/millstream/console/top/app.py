"""``millstream top``: one view at a time, kept live; where somebody was, Escape leads back to."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.theme import Theme
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from millstream.client.recorded.report import ONLY_READ
from millstream.console import words as say
from millstream.console.changes.actions import BY_NAME
from millstream.console.forms.fields import FIELDS
from millstream.console.top.changing import ChangeDialog
from millstream.console.top.dialogs import ActionDialog, FormDialog, KeysDialog
from millstream.console.top.settings import READ_ONLY, TopSettings
from millstream.console.top.views import drawing
from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.drawing import DrawnLine
from millstream.console.top.views.every import FIRST, NEEDS, place_of_words, usage, view_of
from millstream.console.top.views.view import TopPlace, TopView, ViewRow, place
from millstream.console.watching.questions import refused_actions
from millstream.console.watching.watch import ServerWatch
from millstream.errors import Disconnected, MillstreamError, UsageError
from millstream.texts import in_one_line

THEME = Theme(
    "millstream",
    primary="#7cc4d8",
    secondary="#7cc4d8",
    accent="#f2a65a",
    warning="#f2a65a",
    error="#f47c7c",
    success="#8fd19e",
    foreground="#d8dee4",
    background="#10151a",
    surface="#10151a",
    panel="#1b232b",
    dark=True,
)

KEYS = (
    "Up, Down, PgUp, PgDn, j, k    move",
    "Enter                         open what is marked",
    "Escape                        back; first it takes the filter away",
    "1 2 3 4 5                     overview, dead letters, workers, server, Spark queries",
    "/                             show only rows with a text in them",
    ":                             go by a name: a part of one, or a view and what it is of",
    "s                             sort otherwise, where a view can be",
    "a                             change something",
    "p                             pause, and go on",
    "r                             read now",
    "q, Ctrl+C                     quit",
    "",
    "Behind `:` a part of a name finds streams, groups and consumers; or:",
    *(f"  {usage(name)}" for name in (*FIRST, *NEEDS)),
    "",
    "A row with ! needs a person. The line at the foot shows the same in the shell.",
)


@dataclass(frozen=True, slots=True)
class Visit:
    """One view on the way that led here.

    Attributes:
        place: of what.
        title: as it was shown.
        sort: what it is sorted by.
        wanted: the filter.
        row: id of the row that was marked.
    """

    place: TopPlace
    title: str
    sort: str = ""
    wanted: str = ""
    row: str = ""


class RowList(OptionList):
    """The rows of a view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "open"),
        Binding("j", "cursor_down", "down", show=False),
        Binding("k", "cursor_up", "up", show=False),
        Binding("g", "first", "first", show=False),
        Binding("G", "last", "last", show=False),
    ]


class TopApp(App[None]):
    """The application.

    Args:
        settings: which server, who may change something, which view first.
    """

    TITLE = "millstream top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("a", "change", "change"),
        Binding("colon", "jump", "go to", key_display=":"),
        Binding("p", "pause", "pause"),
        Binding("r", "read", "read now", show=False),
        Binding("question_mark", "keys", "keys", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),  # as every command of the shell
        *(Binding(str(number), f"first({number})", name, show=False) for number, name in enumerate(FIRST, 1)),
    ]

    def __init__(self, settings: TopSettings) -> None:
        # with NO_COLOR the terminal's own colours, which Textual takes away; of others it makes greys
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        self._settings = settings
        self.watch_server = ServerWatch(settings.server)
        self._way = [Visit(settings.start, settings.start.view)]
        self._view: TopView | None = None
        self._lines: list[DrawnLine] = []
        self._paused = False
        self._asking = ""
        self._said = ""
        self._texts: dict[str, Content] = {}
        self.register_theme(THEME)
        self.theme = "ansi-dark" if plain else THEME.name

    def compose(self) -> ComposeResult:
        """Where one is and how old it is; the figures; the rows; the command line; the keys."""
        yield Static("", id="head")
        yield Static("", id="figures")
        yield RowList(id="rows", compact=True)
        yield Input(id="ask", compact=True)
        yield Static("", id="shell")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#ask", Input).display = False
        self.query_one(RowList).focus()
        self.set_interval(1, self._tell_state)
        self._look()

    async def on_unmount(self) -> None:
        """Hang up."""
        await self.watch_server.close()

    async def action_quit(self) -> None:
        """End; a change that is under way ends behind its present part."""
        broken = self.watch_server.jobs.running
        self.exit(message=_BROKEN_OFF if broken else None)

    @property
    def visit(self) -> Visit:
        """Where somebody is."""
        return self._way[-1]

    def _look(self) -> None:
        """Look at the present view from now on, at once."""
        self._tell_state()
        self.run_worker(self._keep_looking(), group="look", exclusive=True)

    async def _keep_looking(self) -> None:
        while True:
            await self._read()
            if self._paused:
                return
            await asyncio.sleep(self.watch_server.pause())

    async def _read(self) -> None:
        """Make the view, and show it; where that cannot be, say why."""
        visit = self.visit
        try:
            with self.watch_server.replies():
                view = await view_of(TopAsked(self.watch_server, visit.place, visit.sort))
        except Disconnected as error:
            view = TopView(visit.title, trouble=str(error))
        except MillstreamError as error:
            view = TopView(visit.title, notes=(str(error),))
        self._way[-1] = replace(self.visit, title=view.title)
        self._view = view
        self._draw()

    def _draw(self) -> None:
        """Show the view, with the mark where it was."""
        view = self._view
        if view is None or not self.query(RowList):  # it ends, and what it consists of is taken apart
            return
        rows = self.query_one(RowList)
        width = max(self.size.width - 2, 20)
        lines = drawing.drawn(view, width - 1, self.visit.wanted, self.size.height)  # one cell is the scroll bar's
        self._put("#figures", _figures(view, width, self.visit.sort))
        self._put("#shell", Content(drawing.shell(view, width)))
        if rows.option_count == len(lines) and list(map(_known, lines)) == list(map(_known, self._lines)):
            for number, (line, before) in enumerate(zip(lines, self._lines, strict=True)):
                if line.text != before.text:
                    rows.replace_option_prompt_at_index(number, _content(line))
        else:
            at = rows.scroll_y
            rows.set_options(Option(_content(line), disabled=line.row is None) for line in lines)
            rows.highlighted = _place_of(lines, self.visit.row)
            rows.scroll_to(y=at, animate=False)
        self._lines = lines
        self._tell_state()

    def on_resize(self) -> None:
        """Lines are as wide as the terminal."""
        self._lines = []
        self._draw()

    def _tell_state(self) -> None:
        """Where one is, and how old what is shown is."""
        view, trouble = self._view, ""
        if view is None:
            state = "reading"
        elif view.trouble:
            state, trouble = "NO ANSWER", view.trouble
        else:
            state = "paused" if self._paused else "live"
        if view is not None and view.at_ms:
            state += f", read {say.ago(time.time_ns() // 1_000_000 - view.at_ms)}"
        if not self._paused and self.watch_server.pause() > 2:
            state += f", every {self.watch_server.pause():.0f} s"
        width = max(self.size.width - 2, 20)
        way = " > ".join(in_one_line(visit.title) for visit in self._way)
        server = in_one_line(self._settings.server.name)
        left = drawing.cut(f"{server}  {way}", max(width - len(state) - 2, 10))
        gap = " " * max(width - drawing.cells(left) - len(state), 1)
        hot = "bold $error" if trouble else "bold $accent" if self._paused else "$success"
        parts: list[str | tuple[str, str]] = [(left, "bold $primary"), gap, (state, hot)]
        if trouble:
            lines = list(drawing.folded(trouble, width))[:3]
            parts += [("\n" + "\n".join(lines), "$error")]
        elif self._said:
            parts += [("\n" + "\n".join(drawing.folded(self._said, width)), "bold $accent")]
        elif self.visit.wanted:
            parts += [("\n" + drawing.cut(f"only what has {self.visit.wanted!r} in it", width), "$accent")]
        self._put("#head", Content.assemble(*parts))

    def _put(self, where: str, content: Content) -> None:
        """Show a text in its place; the screen is laid out anew only where it has another number of lines."""
        before = self._texts.get(where)
        if before is None or before != content:
            self._texts[where] = content
            for text in self.query(where).results(Static):  # none while it ends
                text.update(content, layout=before is None or _height(before) != _height(content))

    @property
    def _row(self) -> ViewRow | None:
        """The row that is marked."""
        at = self.query_one(RowList).highlighted
        return self._lines[at].row if at is not None and at < len(self._lines) else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Remember it for the next reading."""
        if event.option_list.id == "rows" and event.option_index < len(self._lines):
            row = self._lines[event.option_index].row
            self._way[-1] = replace(self.visit, row=row.id if row is not None else "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter leads on."""
        if event.option_list.id != "rows":
            return
        row = self._lines[event.option_index].row
        if row is not None and row.to is not None:
            self._go(row.to)

    def _go(self, to: TopPlace, *, anew: bool = False) -> None:
        """Open a view.

        Args:
            to: which.
            anew: the way that led here is forgotten.
        """
        way = [] if anew else self._way
        names = to.names
        title = next((names[name] for name in ("id", "group", "key") if name in names), to.view)
        self._way = [*way, Visit(to, say.name(title))]
        self._moved()

    def _moved(self) -> None:
        self._said = ""
        self.watch_server.leave()
        self._view, self._lines = None, []
        rows = self.query_one(RowList)
        rows.clear_options()
        self._put("#figures", Content())
        self._look()

    def action_leave(self) -> None:
        """One step back; what is being typed, and then a filter, is taken away first."""
        if self._asking:
            if self._asking == "filter":
                self._filtered("")
            self._answered()
        elif self.visit.wanted:
            self._filtered("")
        elif len(self._way) > 1:
            self._way.pop()
            self._moved()

    def action_first(self, number: int) -> None:
        """One of the first views, by its number."""
        self._go(place(FIRST[number - 1]), anew=True)

    def action_sort(self) -> None:
        """By the next one of what the view can be sorted by."""
        view = self._view
        if view is not None and view.sorts:
            at = view.sorts.index(self.visit.sort or view.sorts[0])
            self._way[-1] = replace(self.visit, sort=view.sorts[(at + 1) % len(view.sorts)])
            self._look()

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        self._paused = not self._paused
        self._look()

    def action_read(self) -> None:
        """Read at once, whatever is fresh."""
        self.watch_server.changed()
        self._look()

    def action_keys(self) -> None:
        """What the keys do."""
        self.push_screen(KeysDialog(KEYS))

    def action_filter(self) -> None:
        """Ask for a text."""
        self._ask("filter", "only rows with this in them", self.visit.wanted)

    def action_jump(self) -> None:
        """Ask for a name."""
        self._ask("jump", "a part of a name, or a view: dead, workers, group STREAM GROUP", "")

    def _ask(self, what: str, hint: str, value: str) -> None:
        self._asking, self._said = what, ""
        ask = self.query_one("#ask", Input)
        ask.placeholder, ask.value, ask.display = hint, value, True
        ask.focus()

    @on(Input.Changed, "#ask")
    def _typed(self, event: Input.Changed) -> None:
        if self._asking == "filter":
            self._filtered(event.value)

    @on(Input.Submitted, "#ask")
    def _asked(self, event: Input.Submitted) -> None:
        asking, text = self._asking, event.value.strip()
        self._answered()
        if asking == "jump" and text:
            try:
                self._go(place_of_words(text))
            except UsageError as error:
                self._said = str(error)
                self._tell_state()

    def _answered(self) -> None:
        self._asking = ""
        self.query_one("#ask", Input).display = False
        self.query_one(RowList).focus()

    def _filtered(self, wanted: str) -> None:
        self._way[-1] = replace(self.visit, wanted=wanted)
        self._draw()

    def action_change(self) -> None:
        """What can be changed here, from the choice to what became of it."""
        self.run_worker(self._change(), group="change", exclusive=True)

    async def _change(self) -> None:
        view, row = self._view, self._row
        if view is None:
            return
        about = {**view.about, **(row.about if row is not None else {})}
        names = [name for name in _offered(view, about) if name in BY_NAME]
        try:
            with self.watch_server.replies():
                closed = await self._reasons(names, about)
        except MillstreamError as error:
            closed = dict.fromkeys(names, str(error))
        said = ", ".join(f"{_ABOUT.get(name, name)} {say.brief(word, 40)}" for name, word in about.items())
        action = await self.push_screen_wait(ActionDialog([BY_NAME[name] for name in names], closed, said))
        actor = self._settings.actor
        if action is None or actor is None:
            return
        found: dict[str, str] | None = {**about, "do": action.name}
        if FIELDS[action.name]:
            found = await self.push_screen_wait(FormDialog(action, FIELDS[action.name], {**about, "do": action.name}))
        if found is not None and await self.push_screen_wait(ChangeDialog(self.watch_server, found, actor)):
            self._look()

    async def _reasons(self, names: list[str], about: dict[str, str]) -> dict[str, str]:
        """Action -> why it is not open."""
        if self._settings.actor is None:
            return dict.fromkeys(names, ONLY_READ if self.watch_server.recorded else READ_ONLY)
        return await refused_actions(self.watch_server, about["key"]) if "key" in about else {}


def _offered(view: TopView, about: dict[str, str]) -> Iterator[str]:
    """The changes that fit what is marked, then those of the view."""
    names: list[str] = []
    if "group" in about:
        names += ["pending claim", "pending ack", "pending nack", "group rewind", "consumer rm", "group rm"]
    if "worker" not in about and "key" in about and not any(name.startswith("dead ") for name in view.actions):
        names += ["group create", "stream rm"]
    yield from dict.fromkeys([*(name for name in view.actions if name not in names), *names, "audit undo"])


def _figures(view: TopView, width: int, sort: str) -> Content:
    """The figures, what the rows are sorted by, and what else has to be said."""
    if view.sorts:
        view = replace(view, figures=(*view.figures, ("sorted by", sort or view.sorts[0])))
    return Content("\n".join(drawing.figures(view, width)))


def _height(content: Content) -> int:
    return content.plain.count("\n") + 1 if content.plain else 0


def _known(line: DrawnLine) -> tuple[str, str]:
    """What a line is known by in the next reading: its row, and how many lines it has."""
    return (line.kind if line.row is None else line.row.id, str(line.text.count("\n")))


def _place_of(lines: list[DrawnLine], row: str) -> int | None:
    """The line of a row; the first that shows any, where that one is gone."""
    shown = [at for at, line in enumerate(lines) if line.row is not None]
    same = (at for at, line in enumerate(lines) if line.row is not None and line.row.id == row)
    return next(same, shown[0] if shown else None)


_BROKEN_OFF = "A change was under way and was broken off: `millstream audit ls` shows what was done."

_ABOUT = {"key": "stream", "ids": "entry"}
"""What words of a form are called where they say what a change is about."""

_STYLES = {"title": "bold $primary", "head": "$foreground 60%", "empty": "$foreground 60%"}


def _content(line: DrawnLine) -> Content:
    """A line as Textual draws it: the characters as they are, no markup."""
    if line.row is None:
        return Content.styled(line.text, _STYLES.get(line.kind, ""))
    first, *under = line.text.split("\n")
    parts: list[str | tuple[str, str]] = [(first, "$accent" if line.row.mark else "")]
    style = "$accent" if len(line.row.cells) == 1 and line.row.mark else "$foreground 60%"
    for each in under:
        if each.startswith("    $ "):
            style = "$success"
        elif each.startswith("    ") and not each.startswith(f"    {drawing.COMMAND_GOES_ON}"):
            style = "$foreground 60%"
        parts.append((f"\n{each}", style))
    return Content.assemble(*parts)
