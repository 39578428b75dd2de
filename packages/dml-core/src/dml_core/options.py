"""The options of a component's factory: the keys that a recipe can set, and the types of the
values.
"""

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
        annotation: the type of the values: `float`, `int`, `bool`, `str`, `None`, a `Literal`, a
            sequence, a mapping, or a union of these. Values of other types are only checked by the
            factory.
        default: the factory's default. If it is omitted, the option is required.
    """

    name: str
    annotation: Any = Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether the option must be given, because the factory does not define a default."""
        return self.default is inspect.Parameter.empty

    @property
    def expected(self) -> str:
        """The annotation, formatted for error messages."""
        if isinstance(self.annotation, type):
            return self.annotation.__name__
        return str(self.annotation).replace("typing.", "")

    def fits(self, value: object) -> bool:
        """Tell whether a recipe's value matches the annotation."""
        return _fits(value, self.annotation)


def options_of(factory: Callable[..., Any]) -> tuple[Option, ...]:
    """Read a factory's options from the signature: the parameters that can be passed by name.

    Raises:
        TypeError: if Python can't read the signature.
    """
    named = [
        parameter
        for parameter in _parameters(factory)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    annotations = _annotations(factory)
    return tuple(
        Option(p.name, annotations.get(p.name, _declared_annotation(p)), p.default) for p in named
    )


def signature_of(options: Sequence[Option]) -> inspect.Signature:
    """Make a signature with these options as parameters.

    Use it when a factory forwards ``**options``, to declare them:
    ``factory.__signature__ = signature_of(options)``.
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
    """Tell whether a factory also takes keys that it doesn't name (``**options``).

    Raises:
        TypeError: see `options_of`.
    """
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(factory))


def _parameters(factory: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(factory).parameters.values())
    except ValueError as error:
        raise TypeError(
            f"factory {factory!r} has no signature that can be read; declare the options, or wrap "
            "the factory in a function whose parameters are the options"
        ) from error


def _declared_annotation(parameter: inspect.Parameter) -> Any:
    """Return the annotation in the signature (``__signature__`` can set it); `Any` if missing or
    unresolved.
    """
    stated = parameter.annotation
    return Any if stated is parameter.empty or isinstance(stated, str) else stated


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations, or an empty dict if an annotation uses a name that can't be
    imported.
    """
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
    # TOML only has the types above. If the annotation is a different type, the factory must check
    # the value.
    return True
