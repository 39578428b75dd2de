"""Getting a published data set: downloaded where that is possible, unpacked, and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from dml_core import DmlError
from dml_train.data.published.download import digests, download
from dml_train.data.published.official import Archive, OfficialSet, missing_files, within
from dml_train.data.published.unpacking import unpack


def fetch(official: OfficialSet, root: Path, console: Console, say: Callable[[str], None]) -> None:
    """Leave the whole data set in `root`; what is there already is used.

    Args:
        official: which.
        root: the folder for its archives and for the folder in them; made if it isn't there.
        console: where it is shown how far a download is.
        say: told what is being done.

    Raises:
        DmlError: if a person must download it, and what; if a download or an archive is bad; if half of the data set
            is there.
    """
    root = root.expanduser()
    if _is_there(official, root):
        say(f"{official.title} is in {official.find(root)} already")
        return
    archives = official.archives
    if official.older and all(within(root, archive.name) for archive in official.older):
        archives = official.older
    by_hand = [a.name for a in archives if a.address is None and within(root, a.name) is None]
    if by_hand:
        raise DmlError(f"{root} doesn't hold {' and '.join(by_hand)}. {official.how_to_get(root)}")
    for file, archive in [(_get(archive, root, console, say), archive) for archive in archives]:
        if archive.unpacks:
            say(f"unpacking {file}")
            say(f"unpacked {', '.join(map(str, unpack(file, file.parent)))}")


def _is_there(official: OfficialSet, root: Path) -> bool:
    """Whether every file is there.

    Raises:
        DmlError: if only a part is, so that unpacking would find its folder taken.
    """
    try:
        folder = official.find(root)
        missing = missing_files(official.list_parts(folder))
    except DmlError:
        return False
    if missing and folder != root:
        raise DmlError(
            f"{folder} is there, but {len(missing):,} of its images aren't, e.g. {missing[0]}: rename or remove that "
            "folder, and fetch again"
        )
    return not missing


def _get(archive: Archive, root: Path, console: Console, say: Callable[[str], None]) -> Path:
    """Where the archive is, with the checksum that is known of it, if one is."""
    file = within(root, archive.name)
    if file is not None:
        say(f"{file} is there already")
        if archive.md5 is not None and (md5 := digests(file)["md5"]) != archive.md5:
            raise DmlError(
                f"{file} has the MD5 {md5}, where {archive.md5} is known: it is damaged, cut off or another file; "
                "remove it and get it again"
            )
        return file
    assert archive.address is not None
    file = root / archive.name
    root.mkdir(parents=True, exist_ok=True)
    say(f"downloading {archive.address} ({archive.size})")
    with console.status(archive.name) as status:

        def show(have: int, total: int | None) -> None:
            of = "" if total is None else f" of {total / 1e6:,.0f}"
            status.update(f"{archive.name}: {have / 1e6:,.0f}{of} MB")

        sha256 = download(archive.address, file, md5=archive.md5, progress=show)
    checked = "its MD5 is the one that is known" if archive.md5 else "no checksum of it is published"
    say(f"downloaded {file}; SHA-256 {sha256}; {checked}")
    return file
