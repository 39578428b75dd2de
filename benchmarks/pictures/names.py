"""Find the icon names that mean the same application.

Names that share a drawing in some theme (``gedit``, ``org.gnome.gedit``) are in the same class. If
a class then contains two drawings from a theme, a shared drawing shows a kind of application, such
as "browser". Such classes are built again without drawings that have more names than a limit, which
falls in each round. As a result, a class contains at most a drawing per theme.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from picture_set import components

Drawings = Mapping[str, Mapping[str, str]]  # the drawings' hashes by name, then theme
_LIMITS = (
    None,
    32,
    16,
    8,
    4,
    2,
    1,
)  # in each round, a drawing with more names is not used as a link


def group_names(drawings: Drawings) -> list[tuple[list[str], dict[str, str]]]:
    """Group names into classes with at least 2 different drawings.

    Returns:
        The names by class, and a class's drawings by theme.
    """
    names_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, themes in sorted(drawings.items()):
        for theme, drawing in themes.items():
            names_of[theme, drawing].append(name)
    found = []
    open_names = set(drawings)
    for limit in _LIMITS:
        linking = {
            key: names for key, names in names_of.items() if limit is None or len(names) <= limit
        }
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
                found.append(
                    (component, {theme: different.pop() for theme, different in by_theme.items()})
                )
        open_names = rejected
    return found
