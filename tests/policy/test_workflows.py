"""Workflows parse, run existing verbs, and pin every action to a commit; templates and hooks parse."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = set(re.findall(r"^([a-z0-9-]+):.*##", MAKEFILE, flags=re.MULTILINE))

with_each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def workflow(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict]:
    return [step for job in workflow(path)["jobs"].values() for step in job.get("steps", [])]


def test_the_workflows_are_here():
    assert {path.stem for path in WORKFLOWS} == {"docs", "nightly", "release", "tests", "wheels"}


@with_each_workflow
def test_a_job_has_a_machine_steps_and_existing_needs(path):
    jobs = workflow(path)["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= set(jobs), f"{name} needs {needs}"
        if "uses" in job:  # another workflow of this repository
            assert (ROOT / job["uses"]).is_file()
        else:
            assert job["runs-on"]
            assert all(("run" in step) != ("uses" in step) for step in job["steps"]), name


@with_each_workflow
def test_a_matrix_has_the_names_that_its_job_uses(path):
    for name, job in workflow(path)["jobs"].items():
        matrix = job.get("strategy", {}).get("matrix", {})
        known = set(matrix) | {key for row in matrix.get("include", []) for key in row}
        assert set(re.findall(r"matrix\.(\w+)", yaml.safe_dump(job))) <= known, name


@with_each_workflow
def test_steps_run_existing_verbs(path):
    used = {verb for step in steps(path) for verb in re.findall(r"\bmake ([a-z0-9-]+)", step.get("run", ""))}
    assert used <= VERBS


@with_each_workflow
def test_actions_are_pinned_to_a_commit_with_the_version_beside_it(path):
    for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
        if not line.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", line), line


@with_each_workflow
def test_jobs_have_no_right_to_write_unless_they_publish(path):
    assert workflow(path)["permissions"] == {"contents": "read"}


@with_each_workflow
def test_paths_in_steps_exist(path):
    for step in steps(path):
        for name in re.findall(r"(?<![\w$/])(?:\./)?(packages/[\w./-]+|docs/[\w./-]+)", step.get("run", "")):
            assert "$" in name or (ROOT / name).exists(), name


def test_releases_have_a_tag_for_each_package():
    tags = workflow(ROOT / ".github/workflows/release.yml")[True]["push"][
        "tags"
    ]  # YAML 1.1 reads `on` as true
    packages = [path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")]
    assert sorted(tags) == sorted(f"{package}-v*" for package in packages)


def test_the_citation_has_the_version_of_the_trainer():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    trainer = tomllib.loads((ROOT / "packages/dml-train/pyproject.toml").read_text(encoding="utf-8"))
    assert citation["version"] == trainer["project"]["version"]


def test_templates_and_hooks_parse():
    for path in (*ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"), ROOT / ".pre-commit-config.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0][
        "hooks"
    ]
    for hook in hooks:
        for name in re.findall(r"tests/[\w/]+\.py", hook["entry"]):
            assert (ROOT / name).is_file()


def test_the_address_of_the_repository_is_in_one_place():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    address = settings["tool"]["site"]["repository"]
    assert address == "" or re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]+", address)
    files = [*WORKFLOWS, ROOT / "CITATION.cff", ROOT / "SECURITY.md", *ROOT.glob("packages/*/pyproject.toml")]
    assert not [path for path in files if "github.com/" in path.read_text(encoding="utf-8")]
