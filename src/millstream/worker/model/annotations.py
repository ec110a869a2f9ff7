"""The types that annotations name: without their marks, their other names and their type variables. Pure.

``NewType``, a type alias and ``Order[int]`` mean a type that the worker knows; it reads that type, whatever its name.
"""

import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from millstream.errors import ConfigError

#: Wrappers of a type: they say something about its values, or about the place where it is used.
_MARKS: tuple[Any, ...] = (Annotated, Required, NotRequired, Final)
#: Packages whose objects in ``Annotated`` restrict or change a value.
_RESTRICTING = frozenset({"annotated_types", "pydantic", "pydantic_core", "msgspec"})


def is_marked(annotation: Any) -> bool:
    """True for ``Annotated``, ``Required`` and the like around a type."""
    origin = get_origin(annotation)
    return origin in _MARKS or getattr(origin, "_name", "") == "ReadOnly"  # Python 3.13's, or typing_extensions'


def bare(annotation: Any) -> Any:
    """The type without ``Annotated``, ``Required`` and the like around it."""
    annotation = named(annotation)
    while is_marked(annotation):
        annotation = named(get_args(annotation)[0])
    return annotation


def constraints(annotation: Any) -> tuple[Any, ...]:
    """The objects in ``Annotated`` that restrict a value, of pydantic, annotated_types or msgspec."""
    found: tuple[Any, ...] = ()
    annotation = named(annotation)
    while is_marked(annotation):
        annotation, *marks = get_args(annotation)
        found, annotation = (*filter(_restricts, marks), *found), named(annotation)
    return found


def _restricts(mark: Any) -> bool:
    kinds = {kind.__module__.partition(".")[0] for kind in type(mark).__mro__}
    return not _RESTRICTING.isdisjoint(kinds) or hasattr(mark, "__get_pydantic_core_schema__")


def named(annotation: Any) -> Any:
    """The type to which a ``NewType`` or a type alias gives a name; an alias that holds itself is pydantic's."""
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif _is_alias(annotation) and not _holds_itself(annotation):
            annotation = _meaning(annotation)
        else:
            return annotation


def _is_alias(annotation: Any) -> bool:
    # typing_extensions has a class of the same name before Python 3.12
    return type(get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def _meaning(alias: Any) -> Any:
    origin = get_origin(alias)
    return alias.__value__ if origin is None else filled(origin.__value__, _arguments(origin.__type_params__, alias))


def _holds_itself(annotation: Any, within: tuple[Any, ...] = ()) -> bool:
    if annotation in within or isinstance(annotation, str | ForwardRef):
        return True
    if _is_alias(annotation):
        return _holds_itself(_meaning(annotation), (*within, annotation))
    return any(_holds_itself(part, within) for part in get_args(annotation) if not isinstance(part, str))


def generic(annotation: Any) -> Any:
    """The class of ``Order[int]``, which knows its parts; None for other annotations."""
    origin = get_origin(annotation)
    return origin if isinstance(origin, type) and hasattr(origin, "__parameters__") else None


def hints_of_parts(annotation: Any) -> dict[str, Any]:
    """The annotations of a class's parts; those of ``Order[int]`` with its types for the type variables."""
    kind = generic(annotation)
    hints = get_type_hints(kind or annotation, include_extras=True)
    if kind is None:
        return hints
    arguments = _arguments(kind.__parameters__, annotation)
    return {name: filled(hint, arguments) for name, hint in hints.items()}


def _arguments(parameters: tuple[Any, ...], annotation: Any) -> dict[Any, Any]:
    return dict(zip(parameters, get_args(annotation), strict=False))


def filled(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """The annotation with types for its type variables."""
    if isinstance(hint, TypeVar):
        return arguments.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(arguments.get(one, Any) for one in parameters)]


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, also of the unions that have a name in it; any other type alone."""
    if get_origin(annotation) not in (Union, types.UnionType):  # `X | None` and `Optional[X]` have different origins
        return (annotation,)
    return tuple(member for part in get_args(annotation) for member in members(named(part)))


def is_typed_dict(annotation: Any) -> bool:
    """True for a class of ``TypedDict``, also for typing_extensions' own before Python 3.13."""
    return is_typeddict(annotation) or (isinstance(annotation, type) and hasattr(annotation, "__required_keys__"))


def data(annotation: Any) -> Any:
    """The annotation, unless no entry can have such a value: pydantic takes functions and classes, and none fits."""
    if get_origin(annotation) in (Callable, type) or annotation in (Callable, type):
        raise ConfigError(
            f"cannot decode {annotation!r}: an entry has data, and no functions or classes. Write a type of data, such "
            "as str, or give the object with functools.partial."
        )
    return annotation
