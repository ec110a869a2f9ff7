"""From an entry's fields to a handler's arguments. Pure.

The annotation of a parameter decides its argument:

* ``msg: Message``, or a subclass: the message itself, at any place in the signature;
* one ``dict``, dataclass or pydantic model, or a parameter without annotation: the whole entry;
* ``str``, ``int``, ``float``, ``bool``, ``bytes``, dates and so on: the field of that name. A handler's only parameter
  gets the only field of an entry, whatever its name;
* several parameters: each the field of its name, structured ones from the JSON in it.

The whole entry is its fields. But if it has the single field ``data`` with a JSON object or array, or FastStream's
``__data__`` envelope, it is the content of that field.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args, get_origin

from millstream.errors import ConfigError
from millstream.worker.handlers.calling import bound_by_name, hints_of, name_of
from millstream.worker.handlers.convert import Convert, admits_none, as_text, builder, is_structured, wants_text
from millstream.worker.handlers.fields import JSON_FIELD, encode, to_body, unwrap  # noqa: F401 - two had their place here
from millstream.worker.handlers.message import Message
from millstream.worker.model.annotations import bare, constraints, is_typed_dict, members, named
from millstream.worker.model.answers import PayloadError

_DATA = JSON_FIELD.decode()


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    convert: Convert  # Converts the field to the value
    structured: bool  # It takes the whole entry or a JSON value
    text: bool  # Text or bytes, so that JSON is not parsed
    anything: bool  # It has no annotation
    keeps_data: bool  # It can hold a field ``data``
    optional: bool  # None is allowed if the field is missing
    default: Any


class Binder:
    """Makes a handler's keyword arguments from an entry."""

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        skip: Collection[str] = (),
        context: Collection[type] = (),
        batch: bool = False,
    ) -> None:
        self._message_name: str | None = None
        self._message_kind: type[Message] = Message
        self._parameters: list[_Parameter] = []
        self.annotations: dict[str, Any] = {}  # Annotations of the parameters that get fields or the message, by name
        # Types of ``context`` objects by parameter name; :meth:`bind` omits these parameters
        self.context: dict[str, type] = {}
        name = name_of(handler)
        try:
            hints = hints_of(handler)
        except (NameError, SyntaxError, TypeError) as error:
            raise ConfigError(f"{name}: {error}; the handler's annotations must be importable at run time") from None
        # Arguments that a functools.partial supplies
        given = bound_by_name(handler)
        for parameter in inspect.signature(handler).parameters.values():
            if parameter.name in skip or parameter.name in given:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    f"{name}: parameter {parameter} cannot be filled by name. "
                    "Write one with a name, such as `order: dict`, or a function around it."
                )
            annotation = named(hints.get(parameter.name, Any))
            # Annotated without a constraint would hide the type from the checks below
            annotation = annotation if constraints(annotation) else bare(annotation)
            what = f"{name}: parameter {parameter.name}"
            # Compared by name, since pydantic may not be installed
            if type(parameter.default).__module__ == "pydantic.fields":
                raise ConfigError(
                    f"{what} is invalid: its default is pydantic's Field, which would not check anything. Write "
                    f"{parameter.name}: Annotated[type, Field(...)]."
                )
            # Before the case of a batch: an object of the app is the same for the whole batch
            if annotation in context:
                self.context[parameter.name] = annotation
                continue
            if batch:
                annotation = _element(annotation, what)
            self.annotations[parameter.name] = annotation
            if isinstance(annotation, type) and issubclass(annotation, Message):
                if self._message_name is not None:
                    raise ConfigError(
                        f"{what} is invalid: {self._message_name} is the message already. Remove one of the two."
                    )
                self._message_name, self._message_kind = parameter.name, annotation
                continue
            _check_alone(annotation, (Message, *context), what)
            self._parameters.append(
                _Parameter(
                    name=parameter.name,
                    convert=_builder(annotation, what),
                    structured=is_structured(annotation),
                    text=wants_text(annotation) and not is_structured(annotation),
                    anything=annotation is Any,
                    keeps_data=_keeps_data(annotation),
                    optional=admits_none(annotation) and annotation is not Any,
                    default=parameter.default,
                )
            )
        self._wants_data = any(one.text and one.name == _DATA for one in self._parameters)
        self._single = single = self._parameters[0] if len(self._parameters) == 1 else None
        self.wants_message = self._message_name is not None  # True if a parameter takes the message
        # A parameter without an annotation may also take the field of its name, which depends on the entry
        whole = single is not None and single.structured and not single.anything and not self.wants_message
        self._whole = single if whole else None

    def bind(self, fields: Sequence[bytes], message: Message | None) -> dict[str, Any]:
        """Return the keyword arguments for one entry."""
        if self._whole is not None:  # nearly always
            return {self._whole.name: _of_entry(self._whole, _unwrapped(fields), fields)}
        arguments: dict[str, Any] = {}
        if self._message_name is not None:
            if message is not None and type(message) is not self._message_kind:
                message = message.seen_as(self._message_kind)
            arguments[self._message_name] = message
        if not self._parameters:
            return arguments
        single = self._single
        # A parameter `data: str` takes the text itself, without parsing, since its JSON may be invalid
        body = {_DATA: fields[1]} if self._wants_data and _is_data(fields) else _unwrapped(fields)
        if (
            single is not None
            and single.text
            and _is_data(fields)
            and not (isinstance(body, dict) and single.name in body)
        ):
            body = {_DATA: fields[1]}  # JSON stays text for a text parameter
        if single is not None and single.structured and not (single.anything and _is_field(single.name, body)):
            arguments[single.name] = _of_entry(single, body, fields)
        else:
            for parameter in self._parameters:
                arguments[parameter.name] = self._field(parameter, body)
        return arguments

    def _field(self, parameter: _Parameter, body: Any) -> Any:
        if isinstance(body, Mapping):
            if parameter.name in body:
                return _convert(parameter, body[parameter.name])
            # The names may differ: a single value goes to a single parameter
            if parameter is self._single and len(body) == 1:
                return _convert(parameter, next(iter(body.values())))
            if parameter.default is not inspect.Parameter.empty:
                return parameter.default
            if parameter.optional:
                return None
            raise PayloadError(f"{parameter.name}: the entry has no such field; it has {', '.join(body)}")
        if parameter is self._single:
            return _convert(parameter, body)
        raise PayloadError(
            f"{parameter.name}: the entry holds a single {type(body).__name__}, and the handler takes several fields"
        )


def _element(annotation: Any, what: str) -> Any:
    if constraints(annotation):
        raise ConfigError(
            f"{what} is invalid: a constraint of the whole batch would refuse entries for their number. Write it at "
            "the element: list[Annotated[...]]."
        )
    if annotation in (Any, list):
        return Any
    if get_origin(annotation) is not list:
        raise ConfigError(f"{what} of a batch handler is a list, such as list[dict] or list[Message]")
    element = get_args(annotation)[0]
    return element if constraints(element) else bare(element)


def _check_alone(annotation: Any, ours: Collection[type], what: str) -> None:
    """Refuse a union with a type of the worker's own, such as Message, which is always given and never None."""
    for member in (*get_args(annotation), *members(annotation)):
        if member is not annotation and isinstance(member, type) and issubclass(member, tuple(ours)):
            raise ConfigError(
                f"{what} is invalid: {member.__name__} is always given, and alone. Write {member.__name__} without "
                f"{getattr(annotation, '__name__', None) or 'Optional'}, None or other types."
            )


def _builder(annotation: Any, what: str) -> Convert:
    try:
        return builder(annotation)
    # The conversion for a recursive type cannot be built
    except RecursionError:
        raise ConfigError(
            f"{what} is invalid: {_title(annotation)} holds itself, and only pydantic's models and msgspec's structs "
            "may. Make it one of these, or write dict."
        ) from None
    except (ConfigError, NameError, TypeError) as error:
        raise ConfigError(f"{what}: {error}") from None


def _title(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _unwrapped(fields: Sequence[bytes]) -> Any:
    try:
        return unwrap(fields)
    except ValueError as error:
        raise PayloadError(str(error)) from error


def _convert(parameter: _Parameter, value: Any) -> Any:
    try:
        if parameter.anything and isinstance(value, Mapping):
            return as_text(value)
        return parameter.convert(value)
    # The entry may be hostile: deep JSON and huge numbers must cause a dead letter, not a crash
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise PayloadError(f"{parameter.name}: {error}") from error


def _of_entry(parameter: _Parameter, body: Any, fields: Sequence[bytes]) -> Any:
    """Return the value for a whole entry: the content of its JSON, or the field ``data`` itself if only that fits."""
    try:
        return _convert(parameter, body)
    except PayloadError as error:
        if _is_data(fields) and parameter.keeps_data:
            with contextlib.suppress(PayloadError):
                return _convert(parameter, {_DATA: fields[1]})
        raise error from error.__cause__


def _keeps_data(annotation: Any) -> bool:
    """Report whether a type has a place for the field ``data``: a mapping, or a class with that field.

    Any other type would drop the field, and hide the error.
    """
    kinds = [get_origin(bare(one)) or bare(one) for one in members(bare(annotation))]
    return any(
        any(_DATA in inspect.get_annotations(one) for one in kind.__mro__)
        or (issubclass(kind, Mapping) and not is_typed_dict(kind))
        for kind in kinds
        if isinstance(kind, type)
    )


def _is_data(fields: Sequence[bytes]) -> bool:
    return len(fields) == 2 and fields[0] == JSON_FIELD


def _is_field(name: str, body: Any) -> bool:
    return isinstance(body, Mapping) and len(body) == 1 and name in body
