"""Resolve annotations to the types they name: without wrappers, aliases or type variables. Pure.

``NewType``, a type alias and ``Order[int]`` stand for a type that the worker supports; it decodes that type.
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

#: Wrappers of a type that add facts about its values or its use.
_MARKS: tuple[Any, ...] = (Annotated, Required, NotRequired, Final)
#: Packages whose objects in ``Annotated`` restrict or change a value.
_RESTRICTING = frozenset({"annotated_types", "pydantic", "pydantic_core", "msgspec"})


def is_marked(annotation: Any) -> bool:
    """True for a wrapper around a type, such as ``Annotated`` or ``Required``."""
    origin = get_origin(annotation)
    return origin in _MARKS or getattr(origin, "_name", "") == "ReadOnly"  # from Python 3.13 or typing_extensions


def bare(annotation: Any) -> Any:
    """Return the type without wrappers such as ``Annotated`` or ``Required``."""
    annotation = named(annotation)
    while is_marked(annotation):
        annotation = named(get_args(annotation)[0])
    return annotation


def constraints(annotation: Any) -> tuple[Any, ...]:
    """Return the objects in ``Annotated`` that restrict a value: those of pydantic, annotated_types or msgspec."""
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
    """Return the type behind a ``NewType`` or a type alias; a recursive alias is left for pydantic."""
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif _is_alias(annotation) and not _holds_itself(annotation):
            annotation = _meaning(annotation)
        else:
            return annotation


def _is_alias(annotation: Any) -> bool:
    # Before Python 3.12, typing_extensions has a class of this name
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
    """Return the class of a parametrized one such as ``Order[int]``; None for other annotations."""
    origin = get_origin(annotation)
    return origin if isinstance(origin, type) and hasattr(origin, "__parameters__") else None


def hints_of_parts(annotation: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields; for ``Order[int]``, type variables are replaced by their types."""
    kind = generic(annotation)
    hints = get_type_hints(kind or annotation, include_extras=True)
    if kind is None:
        return hints
    arguments = _arguments(kind.__parameters__, annotation)
    return {name: filled(hint, arguments) for name, hint in hints.items()}


def _arguments(parameters: tuple[Any, ...], annotation: Any) -> dict[Any, Any]:
    return dict(zip(parameters, get_args(annotation), strict=False))


def filled(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """Return the annotation with its type variables replaced by types."""
    if isinstance(hint, TypeVar):
        return arguments.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(arguments.get(one, Any) for one in parameters)]


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, including those of nested unions; any other type alone."""
    if get_origin(annotation) not in (Union, types.UnionType):  # `X | None` and `Optional[X]` have different origins
        return (annotation,)
    return tuple(member for part in get_args(annotation) for member in members(named(part)))


def is_typed_dict(annotation: Any) -> bool:
    """True for a ``TypedDict`` class, including typing_extensions' own before Python 3.13."""
    return is_typeddict(annotation) or (isinstance(annotation, type) and hasattr(annotation, "__required_keys__"))


def data(annotation: Any) -> Any:
    """Return the annotation; raise ConfigError for functions and classes, which no entry can contain."""
    if get_origin(annotation) in (Callable, type) or annotation in (Callable, type):
        raise ConfigError(
            f"cannot decode {annotation!r}: an entry has data, and no functions or classes. Write a type of data, such "
            "as str, or give the object with functools.partial."
        )
    return annotation
