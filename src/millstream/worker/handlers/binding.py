"""From an entry's fields to a handler's arguments, and from an object to an entry's fields. Pure.

What a handler gets, by its annotations:

* ``msg: Message``, or a kind of it: the message itself, wherever it stands in the signature;
* one ``dict``, dataclass or pydantic model, or a parameter without annotation: the whole entry;
* ``str``, ``int``, ``float``, ``bool``, ``bytes``, dates and so on: the field of that name; if it is the only
  parameter and the entry has a single field, that field whatever its name;
* several parameters: each the field of its name, structured ones from the JSON in it.

The whole entry is its fields, unless it has the single field ``data`` with a JSON object or array, or FastStream's
``__data__`` envelope: then it is what is inside.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from millstream.client.jsontext import TooDeepError
from millstream.client.payloads import envelope
from millstream.errors import ConfigError
from millstream.worker.handlers.calling import annotated, bound_by_name, name_of
from millstream.worker.handlers.convert import Convert, admits_none, as_text, builder, from_json, is_structured
from millstream.worker.handlers.message import Message, PayloadError

_JSON_FIELD = b"data"


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    convert: Convert
    structured: bool
    anything: bool
    optional: bool
    default: Any


class Binder:
    """Makes a handler's keyword arguments out of an entry.

    Args:
        handler: the function; its annotations are read once, here.
        skip: parameters that others fill (dependencies).
        context: annotations that stand for something of the app's, see ``context`` below.
        batch: the handler takes lists; the arguments of one entry are made of their elements' types.

    Attributes:
        annotations: of the parameters filled from the entry or with the message, by name.
        context: which of ``context`` each such parameter asks for, by name; :meth:`bind` leaves them out.
        wants_message: True when a parameter is the message.

    Raises:
        ConfigError: an annotation cannot be resolved or decoded.
    """

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
        self.annotations: dict[str, Any] = {}
        self.context: dict[str, type] = {}
        name = name_of(handler)
        try:
            hints = get_type_hints(annotated(handler))
        except NameError as error:
            raise ConfigError(f"{name}: {error}; the handler's annotations must be importable at run time") from None
        given = bound_by_name(handler)
        for parameter in inspect.signature(handler).parameters.values():
            if parameter.name in skip or parameter.name in given:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(f"{name}: parameter {parameter} cannot be filled by name")
            annotation = hints.get(parameter.name, Any)
            if annotation in context:
                self.context[parameter.name] = annotation
                continue
            if batch:
                annotation = _element(annotation, f"{name}: parameter {parameter.name}")
            self.annotations[parameter.name] = annotation
            if isinstance(annotation, type) and issubclass(annotation, Message):
                self._message_name, self._message_kind = parameter.name, annotation
                continue
            self._parameters.append(
                _Parameter(
                    name=parameter.name,
                    convert=builder(annotation),
                    structured=is_structured(annotation),
                    anything=annotation is Any,
                    optional=admits_none(annotation) and annotation is not Any,
                    default=parameter.default,
                )
            )
        self._single = single = self._parameters[0] if len(self._parameters) == 1 else None
        self.wants_message = self._message_name is not None
        whole = single is not None and single.structured and not single.anything and not self.wants_message
        self._whole = single if whole else None

    def bind(self, fields: Sequence[bytes], message: Message | None) -> dict[str, Any]:
        """The keyword arguments for one entry.

        Raises:
            PayloadError: the entry does not fit.
        """
        if self._whole is not None:  # nearly always
            return {self._whole.name: _convert(self._whole, _unwrapped(fields))}
        arguments: dict[str, Any] = {}
        if self._message_name is not None:
            if message is not None and type(message) is not self._message_kind:
                message = message.seen_as(self._message_kind)
            arguments[self._message_name] = message
        if not self._parameters:
            return arguments
        body = _unwrapped(fields)
        single = self._single
        if single is not None and single.structured and not (single.anything and _is_field(single.name, body)):
            arguments[single.name] = _convert(single, body)
        else:
            for parameter in self._parameters:
                arguments[parameter.name] = self._field(parameter, body)
        return arguments

    def _field(self, parameter: _Parameter, body: Any) -> Any:
        if isinstance(body, Mapping):
            if parameter.name in body:
                return _convert(parameter, body[parameter.name])
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
            f"{parameter.name}: the entry holds a single {type(body).__name__}, the handler wants several fields"
        )


def _element(annotation: Any, what: str) -> Any:
    if annotation in (Any, list):
        return Any
    if get_origin(annotation) is not list:
        raise ConfigError(f"{what} of a batch handler is a list, such as list[dict] or list[Message]")
    return get_args(annotation)[0]


def _unwrapped(fields: Sequence[bytes]) -> Any:
    try:
        return unwrap(fields)
    except ValueError as error:
        raise PayloadError(str(error)) from error


def unwrap(fields: Sequence[bytes]) -> Any:
    """The entry's content: a dict of field names and raw values, or what its JSON or envelope holds.

    Raises:
        ValueError: the envelope or its JSON is damaged.
    """
    if len(fields) == 2:
        name, value = fields
        if name == envelope.FIELD:
            return _open(value)
        if name == _JSON_FIELD and value[:1] in (b"{", b"["):
            try:
                return from_json(value)
            except TooDeepError:
                raise
            except ValueError:
                pass  # text that happens to begin with a brace: a field like any other
    return {
        name.decode("utf-8", "surrogateescape"): value for name, value in zip(fields[::2], fields[1::2], strict=True)
    }


def encode(content: Any) -> list[bytes]:
    """The fields and values to XADD for a mapping, a dataclass, a pydantic model, a msgspec struct or a single value.

    Text, bytes and numbers stand as they are, dates in ISO form, anything nested as JSON in its field. A None has no
    representation among fields, so the field is left out; decoding gives None back where the annotation allows it.

    Raises:
        PayloadError: nothing is left to store, or a value has no JSON form.
    """
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        content = {part.name: getattr(content, part.name) for part in dataclasses.fields(content)}
    elif hasattr(content, "model_dump"):
        content = content.model_dump(mode="json")
    elif hasattr(content, "__struct_fields__"):
        content = {name: getattr(content, name) for name in content.__struct_fields__}
    if not isinstance(content, Mapping):
        content = {_JSON_FIELD.decode(): content}
    flat: list[bytes] = []
    for name, value in content.items():
        if value is not None:
            flat += (name if isinstance(name, bytes) else str(name).encode(), _value(value))
    if not flat:
        raise PayloadError("an entry needs at least one field with a value")
    return flat


def to_body(content: Any) -> tuple[str, bytes]:
    """The content type and the body of an envelope for the same contents as :func:`encode` takes.

    Raises:
        PayloadError: a value has no JSON form.
    """
    if isinstance(content, bytes):
        return "application/octet-stream", content
    if isinstance(content, str):
        return "text/plain", content.encode("utf-8", "surrogateescape")
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        content = dataclasses.asdict(content)
    return "application/json", _json(content)


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool | list | tuple | dict):
        return _json(value)
    if isinstance(value, int | float):
        return repr(value).encode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _json(dataclasses.asdict(value))
    if hasattr(value, "__struct_fields__"):
        return _json(value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).encode()
    return _json(value) if isinstance(value, Mapping) else str(getattr(value, "value", value)).encode()


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()
    except TypeError as error:
        raise PayloadError(str(error)) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return str(value)


def _open(value: bytes) -> Any:
    found = envelope.parse(value)
    kind = found.headers.get("content-type", "")
    if kind == "application/json" or (not kind and found.body[:1] in (b"{", b"[")):
        return from_json(found.body)
    return found.body.decode() if kind.startswith("text/") else found.body


def _convert(parameter: _Parameter, value: Any) -> Any:
    try:
        if parameter.anything and isinstance(value, Mapping):
            return as_text(value)
        return parameter.convert(value)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise PayloadError(f"{parameter.name}: {error}") from error


def _is_field(name: str, body: Any) -> bool:
    return isinstance(body, Mapping) and len(body) == 1 and name in body
