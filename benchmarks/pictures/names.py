"""Which names of icons mean one application.

Names that share a drawing in some theme (``gedit``, ``org.gnome.gedit``) are one class, unless two drawings of one
theme then fall into a class: such drawings stand for a kind of application ("browser"), not for one. These classes are
built again without the drawings that have many names, with ever smaller limits. So a class has at most one drawing of
each theme.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from picture_set import components

Drawings = Mapping[str, Mapping[str, str]]  # by name, then theme: the drawing's hash
_LIMITS = (None, 32, 16, 8, 4, 2, 1)  # most names of a drawing that links them, round by round


def group_names(drawings: Drawings) -> list[tuple[list[str], dict[str, str]]]:
    """Group names into classes: the names of each, and its drawing by theme; at least two drawings differ.

    Args:
        drawings: by name and theme.
    """
    names_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, themes in sorted(drawings.items()):
        for theme, drawing in themes.items():
            names_of[theme, drawing].append(name)
    found = []
    open_names = set(drawings)
    for limit in _LIMITS:
        linking = {key: names for key, names in names_of.items() if limit is None or len(names) <= limit}
        rejected: set[str] = set()
        for component in components(open_names, linking.values()):
            members = set(component)
            by_theme: dict[str, set[str]] = defaultdict(set)
            for name in component:
                for theme, drawing in drawings[name].items():
                    if (theme, drawing) in linking:
                        by_theme[theme].add(drawing)
            if any(len(different) > 1 for different in by_theme.values()):
                rejected |= members
            elif len({drawing for different in by_theme.values() for drawing in different}) > 1:
                found.append((component, {theme: different.pop() for theme, different in by_theme.items()}))
        open_names = rejected
    return found
