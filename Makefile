# The project's verbs. They need Python >= 3.11, a Rust toolchain and make; everything else is brought into .venv.
PYTHON ?= python3
OUT ?= runs/demo
BIN := .venv/bin
UV := $(BIN)/uv
PACKAGES := dml-core dml-losses dml-eval-rs dml-train
RUST := $(shell find packages/dml-eval-rs -name '*.rs' -not -path '*/target/*') Cargo.toml Cargo.lock
METADATA := $(wildcard packages/*/pyproject.toml packages/*/Cargo.toml packages/*/*/Cargo.toml)

# Dozens of tests start programs that import torch: 9 s of compilation for each where Python may not keep its bytecode.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-aarch64 check bench docs wheels lock clean

help: ## list the verbs
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.installed ## install everything into .venv, and build the evaluator

demo: setup ## train on rendered glyphs, evaluate on unseen ones, write runs/demo (another folder: OUT=runs/demo-2)
	$(BIN)/dml demo --out $(OUT)

test: setup ## every test
	cargo test --workspace --exclude dml-eval-rs --profile tests --quiet
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup

test-aarch64: ## the Rust core's tests and clippy for aarch64, cross-compiled and emulated
	sh packages/dml-eval-rs/core/test-aarch64.sh

check: setup ## formats, lints, types, stubs and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy packages/dml-core/src packages/dml-losses/src packages/dml-train/src packages/dml-eval-rs/python
	$(BIN)/python -m mypy.stubtest dml_eval_rs._native --mypy-config-file pyproject.toml
	$(BIN)/lint-imports
	cargo fmt --all --check
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --workspace --all-targets --release -- -D warnings

bench: setup ## the benchmarks beside the peers: evaluator, losses, trainer (about half an hour; needs a quiet machine)
	$(BIN)/python benchmarks/evaluator/compare.py
	$(BIN)/python benchmarks/losses/bench_losses.py
	$(BIN)/python benchmarks/training/bench_overhead.py
	$(BIN)/python benchmarks/training/bench_start.py

docs: setup ## check that every link between the pages leads somewhere
	$(BIN)/python -m pytest -q tests/policy/test_docs.py

wheels: setup ## a wheel of every package, into dist/
	rm -rf dist
	for package in $(PACKAGES); do $(UV) build --quiet --wheel --package $$package --out-dir dist || exit 1; done
	@ls -l dist

lock: ## pin the newest versions that the packages' ranges allow, with hashes
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras --upgrade \
	  $(PACKAGES:%=--no-emit-package %) requirements/dev.in $(PACKAGES:%=packages/%/pyproject.toml) \
	  --output-file requirements/dev.txt
	echo uv | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --constraint requirements/dev.txt - --output-file requirements/uv.txt

clean: ## remove what the verbs made, but not runs/
	rm -rf .venv target dist

.venv/bin/uv: requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

.venv/.locked: .venv/bin/uv requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.installed: .venv/.locked $(RUST) $(METADATA)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation-package dml-eval-rs \
	  $(PACKAGES:%=--reinstall-package %) $(PACKAGES:%=-e packages/%)
	@touch $@
