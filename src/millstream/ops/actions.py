"""The declaration of an action: one async function whose parameters say all that doors need to know. Pure.

``@action`` reads the signature. The doors are made from it: the command of the shell, the form of a page, the line that
repeats the change, and its parser. So are the rights that are looked at, and the table of docs/changes.md.
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
"""A user's texts, by the names of the words; a flag is there or not."""

Kind = Literal["argument", "option", "flag", "hidden"]
"""Where a word is written; ``hidden``: only in forms."""

Make: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a change, in every door."""

    kind: Kind  # Argument, option, flag or hidden
    metavar: str = ""  # Placeholder in the shell; ``STREAM``
    says: str = ""  # Text for the help
    name: str = ""  # Name in forms, and of the option; that of the parameter unless given
    typed: str = ""  # The name for click, by which a shell completes it; ``name`` unless given
    title: str = ""  # Precedes its input in a form; without one the form has no input for it
    hint: str = ""  # An example in the input; of a flag what it means
    read: Callable[[str], Any] | None = None  # Makes a value of the text, or raises ValueError or UsageError
    between: str = ""  # Separator of its values in one text; without it, the text is one value
    needed: bool = False  # A form cannot do without it
    required: bool = False  # Neither can the shell
    usual: str | None = None  # The value in the shell where none is typed
    values: tuple[str, ...] = ()  # All that it may be
    least: float | None = None  # The least number it may be; an int takes whole numbers only
    form: bool = True  # Forms may say it; otherwise the door does
    shown: bool = False  # The line of docs/changes.md has it, though others do as well

    @property
    def flag(self) -> bool:
        """True for a checked box in a form."""
        return self.kind == "flag"

    @property
    def option(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    def several(self, text: str) -> list[str]:
        """The values in a text."""
        return [each for each in re.split(self.between, text) if each] if self.between else [text]

    def joined(self, values: Iterable[str]) -> str:
        """The text of several values."""
        return next((sign for sign in (" ", "\n") if re.match(self.between or " ", sign)), "\0").join(values)

    def value(self, texts: Texts, default: Any) -> Any:
        """The value that was written."""
        if self.kind == "flag":
            return self.name in texts
        text = texts.get(self.name)
        if text is not None and (self.read or self.values) and not self.required and not text.strip():
            text = None  # an input that was left empty
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
        """The word as its user knows it: an option, or the name of an argument in the help."""
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
    """Several words that make one value: a choice of entries, a group's new place."""

    read: Callable[[Mapping[str, Any]], Any]  # Makes the value of those of the words, by their names; raises UsageError
    words: tuple[Word, ...]  # The words

    def value(self, texts: Texts, _default: Any) -> Any:
        """The value, as of :meth:`Word.value`."""
        return self.read({word.name: word.value(texts, None) for word in self.words})


@dataclass(frozen=True, slots=True)
class Spread:
    """The way in which an action goes over the partitions of a stream."""

    # Returns the keys in place of a named stream, asked over a line; none if it is not partitioned
    keys: Callable[[Any, str], Awaitable[Sequence[str]]]
    # Returns for each of several texts, asked over a line, if their key has their id; None if no word is an id
    has: Callable[[Any, Sequence[Texts]], Awaitable[Sequence[bool]]] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One change that a person can make."""

    name: str  # Noun and verb, as they are typed: ``group rewind``
    says: str  # Its effect, for a button's title and the list of commands
    make: Make  # The declared function, which plans it
    parameters: Mapping[str, tuple[Word | Together, Any]]  # Parameters of the function, each with its default
    commands: tuple[str, ...]  # Raw commands it runs at most, for what the user may not do
    loses: bool  # Something is gone afterwards that its undo does not bring back, or not all of it
    undo: str  # The action that undoes it; empty where there is none
    # The word that names the key it writes; ``registry`` where that is the registry of workers, empty where the
    # function finds out
    writes: str
    parts: Spread | None = None  # Its way over partitions; None if it takes the key of one

    @property
    def noun(self) -> str:
        """The kind of thing that it changes."""
        return self.name.partition(" ")[0]

    @property
    def verb(self) -> str:
        """The change that it makes."""
        return self.name.partition(" ")[2]

    @property
    def registry(self) -> bool:
        """True when it writes the registry of workers, and no stream."""
        return self.writes == "registry"

    @property
    def words(self) -> tuple[Word, ...]:
        """Its words, in the order of the signature."""
        found = [each for each, _ in self.parameters.values()]
        return tuple(chain.from_iterable(each.words if isinstance(each, Together) else (each,) for each in found))

    @property
    def fields(self) -> tuple[Word, ...]:
        """The inputs of a form; the page says the stream and the group."""
        return tuple(word for word in self.words if word.title)

    @property
    def line(self) -> str:
        """Its command line, with the missing values in capitals."""
        arguments = [word.metavar for word in self.words if word.kind == "argument"]
        shown = [word for word in self.words if word.kind == "option" and (word.needed or word.shown)]
        options = [f"{word.option} {word.metavar}" for word in shown]
        return " ".join(("millstream", self.name, *arguments, *options))

    def bound(self, texts: Texts) -> dict[str, Any]:
        """The arguments of the function."""
        return {name: word.value(texts, default) for name, (word, default) in self.parameters.items()}

    def typed(self, texts: Texts) -> tuple[str, ...]:
        """The command line for these texts, as words."""
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
        """The texts of a command line: :meth:`typed` turned round."""
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
"""Name -> action, of the modules that are loaded; ``ops.every`` loads all."""


def action(
    name: str,
    says: str,
    *runs: str,
    loses: bool = False,
    undo: str = "",
    writes: str = "key",
    parts: Spread | None = None,
) -> Callable[[Make], Action]:
    """Declare an action: the function plans it, and its parameters are its words."""

    def declared(make: Make) -> Action:
        hints = typing.get_type_hints(make, include_extras=True)
        first, *others = signature(make).parameters.values()
        assert first.name == "change"
        words = {each.name: (_word(each, hints[each.name]), each.default) for each in others}
        found = REGISTERED[name] = Action(name, says, make, words, runs, loses, undo, writes, parts)
        return found

    return declared


def _word(parameter: Parameter, hint: Any) -> Word | Together:
    """The word that a parameter is annotated with."""
    kind, *_, word = typing.get_args(hint)
    if isinstance(word, Together):
        return word
    assert isinstance(word, Word)
    required = parameter.default is Parameter.empty and not word.between
    values = typing.get_args(kind) if typing.get_origin(kind) is Literal else word.values
    return replace(word, name=word.name or parameter.name, required=required, values=values)


def form_of(line: Sequence[str]) -> dict[str, str] | None:
    """The words of a page's form for a command line of an action; None for any other line."""
    found = REGISTERED.get(" ".join(line[1:3]))
    return None if found is None else {"do": found.name, **found.parsed(line[3:])}
