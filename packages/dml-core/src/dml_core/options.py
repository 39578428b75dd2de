"""The options of a component's factory: the keys that a recipe's table may set, and the types of their values."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a factory.

    Args:
        name: the key in the recipe's table, and the factory's keyword.
        annotation: the type of its values: `float`, `int`, `bool`, `str`, `None`, a `Literal`, a sequence, a
            mapping, or a union of these. The factory alone judges values of any other type.
        default: the factory's default; without it, the option is required.
    """

    name: str
    annotation: Any = Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def expected(self) -> str:
        """The annotation as messages show it."""
        if isinstance(self.annotation, type):
            return self.annotation.__name__
        return str(self.annotation).replace("typing.", "")

    def fits(self, value: object) -> bool:
        """Check a recipe's value against the annotation."""
        return _fits(value, self.annotation)


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """Read a factory's options from its signature: the parameters that have a name.

    Raises:
        TypeError: if it has no signature that Python can read.
    """
    named = [
        parameter
        for parameter in _parameters(factory)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    annotations = _annotations(factory)
    return tuple(Option(p.name, annotations.get(p.name, _stated(p)), p.default) for p in named)


def signature_of(options: Sequence[Option]) -> inspect.Signature:
    """Return the signature with these options as its parameters.

    A factory that passes ``**options`` on declares them by it: ``factory.__signature__ = signature_of(options)``.
    """
    return inspect.Signature(
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=option.annotation,
            )
            for option in options
        ]
    )


def takes_any_option(factory: Callable[..., Any]) -> bool:
    """Whether a factory takes keys beyond those it names (``**options``).

    Raises:
        TypeError: as `options_of`.
    """
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(factory))


def _parameters(factory: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(factory).parameters.values())
    except ValueError as error:
        raise TypeError(
            f"factory {factory!r} has no signature that can be read; declare its options, or wrap it in a function "
            "whose parameters are its options"
        ) from error


def _stated(parameter: inspect.Parameter) -> Any:
    """The parameter's own annotation, which a ``__signature__`` may give; `Any` for none or unresolved text."""
    stated = parameter.annotation
    return Any if stated is parameter.empty or isinstance(stated, str) else stated


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotations; none if one of them names something that can't be imported."""
    function = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: object, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if origin in (list, tuple, Sequence):
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        element = arguments[0] if arguments else Any
        return all(_fits(item, element) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    # TOML has only the types above: the factory judges values of any other class.
    return True
