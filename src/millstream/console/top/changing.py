"""A change in the terminal: its preview, the question, its progress, what became of it. The words are the shell's."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from millstream.client.line import AccessDenied, Disconnected
from millstream.console import words as say
from millstream.console.changes.actions import BY_NAME
from millstream.console.changes.audit import Actor, undo_line, until_then
from millstream.console.changes.guard import ChangeOutcome
from millstream.console.changes.making import Prepared
from millstream.console.changes.writing import raw_line, shell_line
from millstream.console.forms import preparing
from millstream.console.watching.jobs import ChangeJob
from millstream.console.watching.watch import ServerWatch, unanswered
from millstream.errors import MillstreamError
from millstream.texts import in_one_line

_SHOWN = 10  # raw commands, and steps that were not taken
_LONG = 600  # letters of a sentence
_LOOK = 0.2  # seconds between two looks at how far a change is

_MOVED = "Nothing was done: what the preview was made of has moved meanwhile. This would happen now.\n\n"

Parts = list["str | tuple[str, str]"]


class ChangeDialog(ModalScreen[bool]):
    """One change, from its preview to what became of it; its result is whether something was changed.

    Args:
        watch: the server.
        words: of the form.
        actor: who makes it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "agree", "yes, do it"),
        Binding("u", "undo", "undo it"),
        Binding("x", "stop", "break it off"),
        Binding("escape", "leave", "leave it"),
    ]

    def __init__(self, watch: ServerWatch, words: Mapping[str, str], actor: Actor) -> None:
        super().__init__()
        self._watch = watch
        self._words = dict(words)
        self._actor = actor
        self._prepared: Prepared | None = None
        self._outcome: ChangeOutcome | None = None
        self._job: ChangeJob | None = None
        self._busy = True

    def compose(self) -> ComposeResult:
        """What would happen, and below it the question."""
        with Vertical(classes="dialog"):
            yield Static(Content(self._words["do"]), classes="title", id="question")
            with VerticalScroll():
                yield Static("", id="plan")
            yield Static("", id="state")
            yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Plan it."""
        self.query_one(VerticalScroll).focus()
        self._start()

    def _start(self) -> None:
        self._busy, self._prepared, self._outcome = True, None, None
        self.run_worker(self._plan(), group="change", exclusive=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Which keys are there: yes where something can be done, undo where something was."""
        if action == "agree":
            return (
                not self._busy and self._outcome is None and self._prepared is not None and not self._prepared.nothing
            )
        if action == "undo":
            return not self._busy and self._undoable
        if action == "stop":
            return self._job is not None
        return True

    @property
    def _undoable(self) -> bool:
        done = self._outcome is not None and self._outcome.done > 0 and bool(self._outcome.written)
        return done and self._prepared is not None and self._prepared.plan.undo.by_audit

    async def _plan(self) -> None:
        try:
            self._tell("Looking ...")
            with self._watch.replies():
                line = self._watch.line
                self._words = await preparing.settled(line, self._words, self._actor.who)
                self._prepared = await preparing.prepare(
                    line, self._words, lambda done: self._tell(f"Looking: {done:,} entries")
                )
        except MillstreamError as error:
            self._fail(error)
            return
        self._show(self._prepared)

    async def _make(self, agreed: Prepared) -> None:
        """Have the change made, and show how far it is: it is the server's job, whatever becomes of this dialog."""
        try:
            with self._watch.replies():
                self._prepared = await preparing.prepare(self._watch.line, self._words)
            if not preparing.is_agreed(self._prepared, agreed.plan.digest):
                self._show(self._prepared, moved=True)
                return
            self._job = self._watch.jobs.start(self._prepared, self._words, self._actor)
            self.refresh_bindings()
            while not await self._job.ended(_LOOK):
                self._tell(_progress(self._job))
        except MillstreamError as error:
            self._fail(error, "" if self._job is None else until_then(self._job.id, error))
            return
        finally:
            job, self._job = self._job, None
        assert job is not None
        assert job.outcome is not None
        self._outcome = job.outcome
        self._result(self._prepared, job.outcome)

    def _show(self, prepared: Prepared, *, moved: bool = False) -> None:
        """The preview.

        Args:
            prepared: the change.
            moved: it was confirmed, and is another one by now.
        """
        plan = prepared.plan
        parts: Parts = []
        if moved:
            parts.append((_MOVED, "bold"))
        parts += _table(prepared) + _notes(prepared)
        undo = undo_line(plan, "CHANGE")
        parts += [
            ("Undone by  ", "bold"),
            f"$ {in_one_line(undo)}\n" if undo else "",
        ]
        parts += [f"{in_one_line(plan.undo.note)}\n"] if plan.undo.note else []
        parts += [] if undo or plan.undo.note else ["nothing\n"]
        parts += [("\nThe same in the shell\n", "bold"), f"$ {shell_line(plan.words)}\n"]
        commands = plan.commands
        if commands:
            parts.append(("\nRaw commands\n", "bold"))
            parts += [f"{say.brief(raw_line(command), _LONG)}\n" for command in commands[:_SHOWN]]
            parts += [f"... and {len(commands) - _SHOWN} more\n"] if len(commands) > _SHOWN else []
        self._end(plan.question, parts)
        action = BY_NAME[plan.action]
        loses = " Some of it cannot be brought back." if action.loses else ""
        self._tell("There is nothing to change." if prepared.nothing else f"Nothing was changed yet. y does it.{loses}")

    def _result(self, prepared: Prepared, outcome: ChangeOutcome) -> None:
        plan = prepared.plan
        left = [result for result in outcome.results if result.became not in {"done", "late"}]
        title = "Done" if outcome.whole else "Not all of it was done" if outcome.done else "Nothing was done"
        taken = say.plural(outcome.done, "step was", "steps were")
        parts: Parts = [f"{taken} taken; these were not:\n" if left else f"{taken} taken.\n"]
        parts += [f"  {say.brief(one.step.entry)} {say.brief(one.why, _LONG)}\n" for one in left[:_SHOWN]]
        parts += [f"  ... and {len(left) - _SHOWN} more\n"] if len(left) > _SHOWN else []
        if outcome.unaudited:
            parts.append((f"It is not in the audit stream: {in_one_line(outcome.unaudited)}\n", "bold"))
        elif outcome.written:
            parts.append(f"In the audit stream as {outcome.written}.\n")
        undo = undo_line(plan, outcome.written) if outcome.done else ""
        parts += [("\nTo undo it  ", "bold"), f"$ {in_one_line(undo)}\n"] if undo else []
        parts += [f"{in_one_line(plan.undo.note)}\n"] if plan.undo.note else []
        parts += ["\n", *_table(prepared)] if outcome.whole else []
        self._end(title, parts)
        self._tell("u shows what undoing it would do." if self._undoable else "")

    def _fail(self, error: MillstreamError, kept: str = "") -> None:
        known = isinstance(error, Disconnected | AccessDenied)
        said = unanswered(self._watch.server, error) if known else str(error)
        self._end("It did not work", [in_one_line(said), f"\n\n{in_one_line(kept)}" if kept else ""])
        self._prepared = None
        self._tell("")

    def _end(self, title: str, parts: Parts) -> None:
        self._busy = False
        self.query_one("#question", Static).update(Content(in_one_line(title)))
        self.query_one("#plan", Static).update(Content.assemble(*parts))
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.refresh_bindings()

    def _tell(self, text: str) -> None:
        self.query_one("#state", Static).update(Content(text))

    def action_agree(self) -> None:
        """``y``."""
        if self._prepared is not None:
            self._busy = True
            self.refresh_bindings()
            self.run_worker(self._make(self._prepared), group="change", exclusive=True)

    def action_undo(self) -> None:
        """``u``: the preview of the change that puts everything back."""
        if self._outcome is not None:
            self._words = {"do": "audit undo", "change": self._outcome.change}
            self._start()

    def action_stop(self) -> None:
        """``x``: the change ends behind the part that is under way."""
        if self._job is not None:
            self._job.stop.set()

    def action_leave(self) -> None:
        """Escape; not while something is being changed."""
        if self._busy and self._prepared is not None:
            self._tell("It is being changed: wait for its end, or break it off by x.")
            return
        self.dismiss(self._outcome is not None)


def _progress(job: ChangeJob) -> str:
    """How far a change is."""
    doing = "Breaking it off" if job.stop.is_set() else "Changing"
    entries = job.prepared.entries
    return f"{doing}: {job.done:,} of {entries:,} entries" if entries else f"{doing} ..."


def _table(prepared: Prepared) -> Parts:
    """Before and after."""
    rows = [(say.brief(row.fact, 50), _figure(row.before), _figure(row.after)) for row in prepared.plan.table]
    if not rows:
        return []
    wide = [max(map(len, column)) for column in zip(*rows, ("", "before", "after"), strict=True)]
    head = f"{'':<{wide[0]}}  {'BEFORE':>{wide[1]}}  {'AFTER':>{wide[2]}}\n"
    lines = [f"{fact:<{wide[0]}}  {before:>{wide[1]}}  {after:>{wide[2]}}\n" for fact, before, after in rows]
    return [(head, "bold"), *lines, "\n"]


def _figure(value: object) -> str:
    return "unknown" if value is None else say.brief(str(value), 40)


def _notes(prepared: Prepared) -> Parts:
    notes = [f"- {say.brief(note, _LONG)}\n" for note in prepared.plan.notes]
    return [*notes, "\n"] if notes else []
