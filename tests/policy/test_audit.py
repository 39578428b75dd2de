"""`make audit` with stand-ins for its tools: it is never green when something wasn't audited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = "jinja2==2.4.1 smallvec"  # the vulnerabilities by which the audit tries its tools

# Answers as pip-audit and cargo-audit do. VULNERABLE lists what the data knows; UNKNOWN, what the index doesn't have.
TOOL = """#!{python}
import json, os, re, sys
vulnerable, unknown = os.environ["VULNERABLE"].split(), os.environ["UNKNOWN"].split()
text = open(sys.argv[-1]).read()
if sys.argv[0].endswith("cargo-audit"):
    names = re.findall(r'name = "(.*)"', text)
    found = [{{"package": {{"name": n, "version": "1"}}, "advisory": {{"id": "RUSTSEC-1"}}}}
             for n in names if n in vulnerable]
    print(json.dumps({{"vulnerabilities": {{"list": found}}, "lockfile": {{"dependency-count": len(names)}}}}))
else:
    pins = re.findall(r"^(.*)==(.*)$", text, re.M)
    assert len({{name for name, _ in pins}}) == len(pins), "pip-audit refuses two versions"
    vulns = lambda name, version: [{{"id": "CVE-1"}}] if f"{{name}}=={{version}}" in vulnerable else []
    print(json.dumps({{"dependencies": [
        {{"name": n, "skip_reason": "not found"}} if n in unknown else
        {{"name": n, "version": v, "vulns": vulns(n, v)}} for n, v in pins]}}))
"""


@pytest.fixture
def audit(tmp_path):
    """Run the audit with these tools installed; return its exit code and its output."""
    script = tmp_path / "repository" / "requirements" / "audit.py"
    script.parent.mkdir(parents=True)
    script.write_bytes((ROOT / "requirements" / "audit.py").read_bytes())
    for file in ("requirements/dev.txt", "requirements/uv.txt", "Cargo.lock"):
        (script.parents[1] / file).write_bytes((ROOT / file).read_bytes())
    tools = tmp_path / "tools"
    tools.mkdir()

    def audit(*installed: str, vulnerable: str = "", unknown: str = "") -> tuple[int, str]:
        for name in installed:
            (tools / name).write_text(TOOL.format(python=sys.executable))
            (tools / name).chmod(0o755)
        environment = {**os.environ, "PATH": str(tools), "VULNERABLE": vulnerable, "UNKNOWN": unknown}
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, env=environment, check=False
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    return audit


def test_missing_tools_are_named(audit):
    code, output = audit()
    assert code == 2
    assert "requirements/dev.txt: NOT AUDITED: uv, which runs pip-audit, isn't installed" in output
    assert "Cargo.lock: NOT AUDITED: cargo-audit isn't installed" in output


def test_a_missing_tool_is_not_green_when_the_other_finds_nothing(audit):
    code, output = audit("uv", vulnerable="jinja2==2.4.1")
    assert code == 2
    assert "dev.txt: " in output
    assert "pins audited, 0 vulnerabilities" in output


def test_an_index_without_data_is_not_green(audit):
    code, output = audit("uv", "cargo-audit")
    assert code == 2
    assert output.count("NOT AUDITED: its data has no vulnerability for ") == 3


def test_a_pin_that_the_index_lacks_is_not_green(audit):
    code, output = audit("uv", "cargo-audit", vulnerable=KNOWN, unknown="numpy")
    assert code == 2
    assert "dev.txt: NOT AUDITED: only " in output


def test_a_vulnerability_is_named(audit):
    code, output = audit("uv", "cargo-audit", vulnerable=f"{KNOWN} rayon")
    assert code == 1
    assert "rayon 1: RUSTSEC-1" in output


def test_nothing_found_is_green_only_after_every_pin_was_audited(audit):
    code, output = audit("uv", "cargo-audit", vulnerable=KNOWN)
    assert code == 0
    assert "NOT AUDITED" not in output
    assert output.count("pins audited, 0 vulnerabilities") == 3
