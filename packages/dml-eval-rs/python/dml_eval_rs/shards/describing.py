"""The first tasks of a call: what each shard holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dml_eval_rs import __version__
from dml_eval_rs.shards.running import Map, Work, run_tasks
from dml_eval_rs.shards.sources import Shard, Source, as_shards, check_alike, describe


def describe_shards(sides: Mapping[str, Sequence[Source]], codes: bool, map: Map) -> list[list[Shard]]:
    """Return the shards of each side with their shapes and dtypes, as the workers see them.

    Args:
        sides: the shards of each side, by the name of the argument.
        codes: whether they hold codes.
        map: runs a task for each shard that is no array.

    Raises:
        TypeError, ValueError: naming a shard that can't be read, holds anything but floats (or codes), or differs from
            the others in width or dtype; if a side has no rows.
    """
    found = [as_shards(sources, name, codes=codes) for name, sources in sides.items()]

    def tasks() -> Iterator[tuple[Work, Shard]]:
        for side, shards in enumerate(found):
            for place, shard in enumerate(shards):
                if not shard.dtype:
                    yield Work(("describe", side, place), "", __version__, None), shard

    for (_, side, place), shard in run_tasks(map, _describe, tasks(), lambda key: found[key[1]][key[2]].name):
        found[side][place] = shard
    check_alike(*found)
    for name, shards in zip(sides, found):
        if not any(shard.shape[0] for shard in shards):
            raise ValueError(f"{name} hold no rows; expected at least one")
    return found


def _describe(work: Work, shard: Any) -> Shard:
    return describe(shard)
