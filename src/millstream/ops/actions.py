"""The declaration of an action: an async function with annotated parameters. Pure.

``@action`` reads the signature. The shell command, the page's form, the command line that repeats the change and its
parser are made from it. So are the check of rights and the table of docs/changes.md.
"""

import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from itertools import chain
from typing import Any, Literal, TypeAlias

from millstream.errors import UsageError
from millstream.ops.words import command_words

Texts: TypeAlias = Mapping[str, str]
"""Texts that a user gave, by parameter name; a set flag has a key."""

Kind = Literal["argument", "option", "flag", "hidden"]
"""The place of a parameter in the shell; a ``hidden`` one is in forms only."""

Make: TypeAlias = Callable[..., Awaitable[Any]]


class NothingChosenError(UsageError):
    """A change has no selection; the message names the options that select something.

    What to do: give ids or options, or select rows.
    """


@dataclass(frozen=True, slots=True)
class Word:
    """One parameter of an action, for the shell, forms and docs."""

    kind: Kind  # Argument, option, flag or hidden parameter
    metavar: str = ""  # Placeholder in the shell, such as ``STREAM``
    says: str = ""  # Text of the help
    name: str = ""  # Name in forms, and of the option; the default is the parameter's name
    typed: str = ""  # Name for click, which selects the shell's completion; ``name`` unless given
    title: str = ""  # Label of the input in a form; without a title the form has no input
    hint: str = ""  # Example in the input; for a flag, its meaning
    read: Callable[[str], Any] | None = None  # Converts the text to a value, or raises ValueError or UsageError
    between: str = ""  # Separator of several values in one text; without it, the text is one value
    needed: bool = False  # True if a form requires it
    required: bool = False  # True if the shell requires it
    usual: str | None = None  # Default value in the shell
    values: tuple[str, ...] = ()  # Allowed values
    least: float | None = None  # Lowest allowed number; an int allows whole numbers only
    form: bool = True  # True if a form may set it; otherwise the page or the shell does
    shown: bool = False  # True if its line in docs/changes.md always shows it, though it is optional

    @property
    def flag(self) -> bool:
        """True for a flag, which a form shows as a checkbox."""
        return self.kind == "flag"

    @property
    def option(self) -> str:
        """Name of the option with its dashes, as a user types it."""
        return f"--{self.name.replace('_', '-')}"

    def several(self, text: str) -> list[str]:
        """Split a text into its values."""
        return [each for each in re.split(self.between, text) if each] if self.between else [text]

    def joined(self, values: Iterable[str]) -> str:
        """Join values to one text that :meth:`several` splits."""
        return next((sign for sign in (" ", "\n") if re.match(self.between or " ", sign)), "\0").join(values)

    def value(self, texts: Texts, default: Any) -> Any:
        """Return the parameter's value from the user's texts, or its default."""
        if self.kind == "flag":
            return self.name in texts
        text = texts.get(self.name)
        if text is not None and (self.read or self.values) and not self.required and not text.strip():
            text = None  # the input was left empty
        if self.between:
            return tuple(dict.fromkeys(map(self._value, self.several(text or ""))))
        if text is None:
            if default is not Parameter.empty:
                return default
            raise UsageError(f"{self._missing()} is missing. Give it a value.")
        return self._value(text)

    def _missing(self) -> str:
        return self.metavar or self.name if self.kind == "argument" else f"{self.option} {self.metavar}".rstrip()

    def _typed(self) -> str:
        """Return the parameter's name for messages: the option, or the argument's name in the help."""
        if self.kind != "argument":
            return self.option
        plain = self.metavar.strip("[].")
        return plain if plain.isalpha() else self.name

    def _value(self, text: str) -> Any:
        if self.values and text not in self.values:
            raise UsageError(f"{self._typed()} {text!r}: it must be one of {', '.join(self.values)}")
        try:
            return text if self.read is None else self.read(text)
        except ValueError as reason:
            raise UsageError(f"{self._typed()} {text!r}: {reason}") from None


@dataclass(frozen=True, slots=True)
class Together:
    """Several parameters that make one value, such as a choice of entries or a group's new position."""

    read: Callable[[Mapping[str, Any]], Any]  # Combines the parameters' values into one; raises UsageError
    words: tuple[Word, ...]  # The parameters

    def value(self, texts: Texts, _default: Any) -> Any:
        """Return the combined value; see :meth:`Word.value`."""
        return self.read({word.name: word.value(texts, None) for word in self.words})


@dataclass(frozen=True, slots=True)
class Spread:
    """The functions that find the partitions which an action concerns."""

    # Reads the keys of a stream's partitions; none if it is not partitioned
    keys: Callable[[Any, str], Awaitable[Sequence[str]]]
    # Reports, for each set of texts, whether its key contains its id; None if no parameter is an id
    has: Callable[[Any, Sequence[Texts]], Awaitable[Sequence[bool]]] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One change that a person can make."""

    name: str  # Noun and verb, as typed: ``group rewind``
    says: str  # Description of its effect, for a button's title and the list of commands
    make: Make  # The declared function, which plans it
    parameters: Mapping[str, tuple[Word | Together, Any]]  # Parameters of the function, each with its default
    commands: tuple[str, ...]  # All raw commands that it may run, to check the user's rights
    loses: bool  # True if its undo does not restore everything
    undo: str  # Action that undoes it; empty if there is none
    # Parameter with the key that it writes; ``registry`` for the registry of workers; empty if the function determines
    # the key
    writes: str
    parts: Spread | None = None  # Finds partitions; None if the action only takes the key of a single partition

    @property
    def noun(self) -> str:
        """The kind of object that the action changes, such as ``group``."""
        return self.name.partition(" ")[0]

    @property
    def verb(self) -> str:
        """The kind of change, such as ``rewind``."""
        return self.name.partition(" ")[2]

    @property
    def registry(self) -> bool:
        """True if the action writes the registry of workers instead of a stream."""
        return self.writes == "registry"

    @property
    def words(self) -> tuple[Word, ...]:
        """The action's parameters in the order of the signature."""
        found = [each for each, _ in self.parameters.values()]
        return tuple(chain.from_iterable(each.words if isinstance(each, Together) else (each,) for each in found))

    @property
    def fields(self) -> tuple[Word, ...]:
        """The parameters with an input in the form; the page itself gives the stream and the group."""
        return tuple(word for word in self.words if word.title)

    @property
    def line(self) -> str:
        """The action's command line with placeholders in capitals."""
        arguments = [word.metavar for word in self.words if word.kind == "argument"]
        shown = [word for word in self.words if word.kind == "option" and (word.needed or word.shown)]
        options = [f"{word.option} {word.metavar}" for word in shown]
        return " ".join(("millstream", self.name, *arguments, *options))

    def bound(self, texts: Texts) -> dict[str, Any]:
        """Return the function's arguments, read from the user's texts."""
        return {name: word.value(texts, default) for name, (word, default) in self.parameters.items()}

    def typed(self, texts: Texts) -> tuple[str, ...]:
        """Return the command line for the user's texts, split into words."""
        arguments, options = list[str](), list[str]()
        for word in self.words:
            text = texts.get(word.name)
            if text is None or word.kind == "hidden":
                continue
            if word.kind == "argument":
                arguments += word.several(text)
            else:
                options += [word.option] if word.flag else [word.option, text]
        return command_words(self.name, *arguments, options=options)

    def parsed(self, words: Sequence[str]) -> dict[str, str]:
        """Parse a command line to texts, the reverse of :meth:`typed`."""
        found, rest, given = dict[str, str](), iter(words), list[str]()
        options = {word.option: word for word in self.words if word.kind in {"option", "flag"}}
        for text in rest:
            if text == "--":
                given += rest
            elif (word := options.get(text)) is not None:
                found[word.name] = "1" if word.flag else next(rest, "")
            elif (word := options.get(text.partition("=")[0])) is not None:
                found[word.name] = text.partition("=")[2]
            else:
                given.append(text)
        for word in self.words:
            if word.kind == "argument" and given:
                found[word.name] = word.joined(given) if word.between else given[0]
                given = [] if word.between else given[1:]
        return found


REGISTERED: dict[str, Action] = {}
"""Actions by name, from the modules loaded so far; ``ops.every`` loads all."""


def action(
    name: str,
    says: str,
    *runs: str,
    loses: bool = False,
    undo: str = "",
    writes: str = "key",
    parts: Spread | None = None,
) -> Callable[[Make], Action]:
    """Declare an action: the decorated function plans the change from its annotated parameters."""

    def declared(make: Make) -> Action:
        hints = typing.get_type_hints(make, include_extras=True)
        first, *others = signature(make).parameters.values()
        assert first.name == "change"
        words = {each.name: (_word(each, hints[each.name]), each.default) for each in others}
        found = REGISTERED[name] = Action(name, says, make, words, runs, loses, undo, writes, parts)
        return found

    return declared


def _word(parameter: Parameter, hint: Any) -> Word | Together:
    """Return the annotation of a parameter, completed by its name, default and values."""
    kind, *_, word = typing.get_args(hint)
    if isinstance(word, Together):
        return word
    assert isinstance(word, Word)
    required = parameter.default is Parameter.empty and not word.between
    values = typing.get_args(kind) if typing.get_origin(kind) is Literal else word.values
    return replace(word, name=word.name or parameter.name, required=required, values=values)


def form_of(line: Sequence[str]) -> dict[str, str] | None:
    """Return the values of the page's form for an action's command line; None for another command line."""
    found = REGISTERED.get(" ".join(line[1:3]))
    return None if found is None else {"do": found.name, **found.parsed(line[3:])}
