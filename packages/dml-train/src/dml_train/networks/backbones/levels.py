"""The option ``levels`` of all backbones: the depths that give the features."""

from __future__ import annotations

from collections.abc import Sequence

from dml_core import InvalidOption, nearest


def check_levels(levels: Sequence[str], known: Sequence[str], model: str) -> None:
    """Refuse levels that a model doesn't have.

    Raises:
        InvalidOption: an unknown level, with the nearest known one, or a level given twice.
    """
    for level in levels:
        if level not in known:
            raise InvalidOption(
                f"backbone.levels names {level!r}; {model} has no such level{nearest(level, known)} "
                f"it has: {', '.join(known)}"
            )
    if len(set(levels)) < len(levels):
        raise InvalidOption(f"backbone.levels is {list(levels)}; expected each level once")
