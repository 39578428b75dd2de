"""Download of a published data set, if its owners allow that, and unpacking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dml_core import DmlError
from dml_train.data.published.download import compute_digest, download
from dml_train.data.published.official import Archive, OfficialSet, find_file, list_missing
from dml_train.data.published.unpacking import unpack
from dml_train.files import WriteRefused


def fetch(official: OfficialSet, root: Path, progress: bool, report: Callable[[str], None]) -> None:
    """Download and unpack a data set into `root`, reusing existing files.

    Args:
        official: the data set.
        root: the folder for its archives and the unpacked folder, created if missing.
        progress: whether to show progress bars of downloads on the standard error.
        report: called with a line about each step.

    Raises:
        DmlError: a file must be downloaded by hand; a download or an archive is bad; the existing data set is
            incomplete.
    """
    root = root.expanduser()
    if _is_complete(official, root):
        report(f"{official.title} is already in {official.find(root)}")
        return
    archives = official.archives
    if official.older and all(find_file(root, archive.name) for archive in official.older):
        archives = official.older
    by_hand = [a.name for a in archives if a.address is None and find_file(root, a.name) is None]
    if by_hand:
        raise DmlError(f"{root} doesn't hold {' and '.join(by_hand)}. {official.describe_download(root)}")
    for file, archive in [(_get_archive(archive, root, progress, report), archive) for archive in archives]:
        if archive.unpacks:
            report(f"unpacking {file}")
            report(f"unpacked {', '.join(map(str, unpack(file, file.parent)))}")


def _is_complete(official: OfficialSet, root: Path) -> bool:
    """Tell whether every listed image exists.

    Raises:
        DmlError: if a subfolder holds only some images, since unpacking never overwrites a folder.
    """
    try:
        folder = official.find(root)
        missing = list_missing(official.list_parts(folder))
    except DmlError:
        return False
    if missing and folder != root:
        raise DmlError(
            f"{folder} exists, but {len(missing):,} of its images are missing, e.g. {missing[0]}: rename or remove "
            "this folder, and fetch again"
        )
    return not missing


def _get_archive(archive: Archive, root: Path, progress: bool, report: Callable[[str], None]) -> Path:
    """Find or download an archive, and compare its checksum if one is published."""
    file = find_file(root, archive.name)
    if file is not None:
        report(f"{file} already exists")
        if archive.md5 is not None and (md5 := compute_digest(file, "md5")) != archive.md5:
            raise DmlError(
                f"{file} has the MD5 {md5}; expected {archive.md5}. It is damaged, truncated or another file: remove "
                "it and download it again"
            )
        return file
    assert archive.address is not None
    file = root / archive.name
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteRefused(f"can't make the folder {root}: {error.strerror}") from error
    report(f"downloading {archive.address} ({archive.size})")
    sha256 = download(archive.address, file, md5=archive.md5, progress=progress)
    checked = "its MD5 is correct" if archive.md5 else "no checksum is published"
    report(f"downloaded {file}; SHA-256 {sha256}; {checked}")
    return file
