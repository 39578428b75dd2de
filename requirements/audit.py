"""Audit the pinned Python packages and Rust crates for known vulnerabilities: `make audit`.

An audit without data is green, too: pip-audit skips a package that its index doesn't describe. So
each tool is first given a release with a published vulnerability, and counts as an audit only if it
reports that one.

Exits with 0 if all was audited and nothing found, with 1 for a vulnerability, with 2 if something
wasn't audited.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PIP_AUDIT = "pip-audit==2.10.1"
VULNERABLE_PACKAGE = "jinja2==2.4.1"  # CVE-2014-1402 and later ones
VULNERABLE_CRATE = """version = 3

[[package]]
name = "smallvec"
version = "0.6.3"
source = "registry+https://github.com/rust-lang/crates.io-index"
"""  # RUSTSEC-2018-0003 and later ones


class NotAudited(Exception):
    """Why an audit has no result."""


class Findings(NamedTuple):
    """What an audit found."""

    audited: int
    vulnerable: Sequence[str]


def audit_packages(requirements: Path) -> Findings:
    """Audit a file of pinned packages by pip-audit."""
    uv = shutil.which("uv", path=str(ROOT / ".venv/bin")) or shutil.which("uv")
    if uv is None:
        raise NotAudited("uv, which runs pip-audit, isn't installed: run make setup")
    command = [
        uv,
        "tool",
        "run",
        "--quiet",
        "--from",
        PIP_AUDIT,
        "pip-audit",
        "--disable-pip",
        "--no-deps",
    ]
    audited: list[dict[str, Any]] = []
    pins = read_pins(requirements)
    # Without markers, or pins for other systems would be skipped; and one version of a package at a
    # time.
    while pins:
        versions = dict(reversed(pins))
        pins = [pin for pin in pins if pin not in versions.items()]
        with TemporaryDirectory() as folder:
            some = Path(folder) / "requirements.txt"
            some.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
            report = _read_json([*command, "--format", "json", "-r", str(some)], "pip-audit")
        audited += [package for package in report["dependencies"] if "vulns" in package]
    found = [f"{p['name']} {p['version']}: {vuln['id']}" for p in audited for vuln in p["vulns"]]
    return Findings(len(audited), found)


def read_pins(requirements: Path) -> list[tuple[str, str]]:
    """List the names and versions of a file of pinned packages."""
    return re.findall(
        r"^([\w.-]+)==([^\s;]+)", requirements.read_text(encoding="utf-8"), re.MULTILINE
    )


def audit_crates(lock: Path) -> Findings:
    """Audit a Cargo.lock by cargo-audit."""
    if shutil.which("cargo-audit") is None:
        raise NotAudited("cargo-audit isn't installed: run cargo install cargo-audit --locked")
    report = _read_json(["cargo-audit", "audit", "--json", "--file", str(lock)], "cargo-audit")
    found = report["vulnerabilities"]["list"]
    names = [
        f"{f['package']['name']} {f['package']['version']}: {f['advisory']['id']}" for f in found
    ]
    return Findings(report["lockfile"]["dependency-count"], names)


def _read_json(command: Sequence[str], tool: str) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else "it printed nothing"
        raise NotAudited(f"{tool} failed with exit code {done.returncode}: {reason}") from error


def audit(file: Path, count: int, canary: str, by: Callable[[Path], Findings]) -> list[str]:
    """Audit `count` pins of a file, and return the vulnerable ones.

    Raises:
        NotAudited: if the tool is missing or fails, doesn't know the canary's vulnerability, or
            skips a pin.
    """
    with TemporaryDirectory() as folder:
        known = Path(folder) / file.name
        known.write_text(canary, encoding="utf-8")
        if not by(known).vulnerable:
            raise NotAudited(
                f"its data has no vulnerability for {' '.join(canary.split())}, which has one"
            )
    found = by(file)
    if found.audited < count and not found.vulnerable:
        raise NotAudited(f"only {found.audited} of {count} pins were audited")
    print(
        f"{file.relative_to(ROOT)}: {found.audited} pins audited, {len(found.vulnerable)} "
        "vulnerabilities"
    )
    return [*found.vulnerable]


def main() -> int:
    """Audit all files of pins, and return the exit code."""
    lock, vulnerable, unaudited = ROOT / "Cargo.lock", [], False
    python = [ROOT / "requirements" / name for name in ("dev.txt", "uv.txt")]
    audits = [
        *((file, len(read_pins(file)), VULNERABLE_PACKAGE, audit_packages) for file in python),
        (
            lock,
            lock.read_text(encoding="utf-8").count("\nsource = "),
            VULNERABLE_CRATE,
            audit_crates,
        ),
    ]
    for file, count, canary, by in audits:
        try:
            vulnerable += audit(file, count, canary, by)
        except NotAudited as error:
            unaudited = True
            print(f"{file.relative_to(ROOT)}: NOT AUDITED: {error}")
    print("\n".join(vulnerable), end="\n" if vulnerable else "")
    return 1 if vulnerable else 2 if unaudited else 0


if __name__ == "__main__":
    sys.exit(main())
