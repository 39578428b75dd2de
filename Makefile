# The project's verbs. They need Python >= 3.11, a Rust toolchain and make; everything else is brought into .venv.
PYTHON ?= python3
OUT ?= runs/demo
BIN := .venv/bin
UV := $(BIN)/uv
PACKAGES := dml-core dml-losses dml-eval-rs dml-train
LOWEST_EXTRAS := eval glyphs losses pml report tensorboard timm tune
# Old releases use what the newest releases of their own dependencies deprecate.
LOWEST_FLAGS := -m "not slow" -W ignore::DeprecationWarning
LOWEST_TESTS := packages/dml-core/tests packages/dml-losses/tests packages/dml-eval-rs/tests $(addprefix packages/dml-train/tests/test_,\
  cli.py recipe.py training.py resuming.py checkpoint.py report.py tuning.py folder_embedding.py search.py timm_model.py)
# All extras but the trackers mlflow and trackio: trackio would set Pillow back a release, mlflow brings dozens of packages.
LOCKED_EXTRAS := cars196 duplicates eval glyphs hf lite0 lora losses onnx plot pml ray report tables tensorboard timm tune wandb
RUST := $(shell find packages/dml-eval-rs -name '*.rs' -not -path '*/target/*') Cargo.toml Cargo.lock
# Links a Linux wheel against an old C library, so that it runs on every system since 2018.
ZIG := $(if $(filter Linux,$(shell uname -s)),--zig --compatibility manylinux_2_28)
METADATA := $(wildcard packages/*/pyproject.toml packages/*/Cargo.toml packages/*/*/Cargo.toml)

# Dozens of tests start programs that import torch: 9 s of compilation for each where Python may not keep its bytecode.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-lowest test-aarch64 check audit bench gpu soak mutants docs docs-links wheels sdists lock clean

help: ## list the verbs
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.installed ## install everything into .venv, and build the evaluator

demo: setup ## train on rendered glyphs, evaluate on unseen ones, write runs/demo (another folder: OUT=runs/demo-2)
	$(BIN)/dml demo --out $(OUT)

# As many processes as cores, each with one thread of OpenMP. A process runs all tests of a file, and makes their fixtures once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --durations 20 --durations-min 1

test: setup ## the tests, without the slow ones, with a quarter of the examples
	PROPTEST_CASES=64 cargo test --workspace --exclude dml-eval-rs --profile tests --quiet
	$(PYTEST) -m "not slow"

test-all: setup ## every test, the property tests with four times as many examples
	cargo test --workspace --exclude dml-eval-rs --profile tests --quiet
	$(PYTEST) --hypothesis-profile=ci

test-lowest: .venv/bin/uv ## a selection of the tests with the lowest versions that the packages allow, in .venv/lowest
	$(UV) venv --quiet --clear --python $(BIN)/python .venv/lowest
	$(UV) pip compile --quiet --python .venv/lowest/bin/python --resolution lowest-direct --no-header $(LOWEST_EXTRAS:%=--extra %) \
	  $(PACKAGES:%=--no-emit-package %) requirements/lowest.in $(PACKAGES:%=packages/%/pyproject.toml) \
	  --output-file .venv/lowest/requirements.txt
	$(UV) pip install --quiet --python .venv/lowest/bin/python -r .venv/lowest/requirements.txt
	$(UV) pip install --quiet --python .venv/lowest/bin/python --no-deps $(PACKAGES:%=-e packages/%)
	OMP_NUM_THREADS=1 .venv/lowest/bin/python -m pytest -q -n 2 --dist loadfile $(LOWEST_FLAGS) $(LOWEST_TESTS)
	$(UV) pip install --quiet --python .venv/lowest/bin/python --no-deps numpy==1.26.0  # the evaluator's own lowest
	OMP_NUM_THREADS=1 .venv/lowest/bin/python -m pytest -q -n 2 --dist loadfile $(LOWEST_FLAGS) packages/dml-eval-rs/tests

test-aarch64: ## the Rust core's tests and clippy for aarch64, cross-compiled and emulated
	sh packages/dml-eval-rs/core/test-aarch64.sh

CHECKS := check-format check-lint check-types check-stubs check-imports check-rustfmt check-clippy docs
.PHONY: $(CHECKS)
check: setup ## formats, lints, types, stubs, import rules, and the site; runs all of them, and names those that fail
	@failed=; for check in $(CHECKS); do $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; done; \
	  test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

check-format:
	$(BIN)/ruff format --check .

check-lint:
	$(BIN)/ruff check .

check-types:
	$(BIN)/mypy packages/dml-core/src packages/dml-losses/src packages/dml-train/src packages/dml-eval-rs/python

check-stubs:
	$(BIN)/python -m mypy.stubtest dml_eval_rs._native --mypy-config-file pyproject.toml

check-imports:
	$(BIN)/lint-imports

check-rustfmt:
	cargo fmt --all --check

check-clippy:
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --workspace --all-targets --release -- -D warnings

audit: setup ## known vulnerabilities of the pinned packages and crates (needs cargo-audit, and data from outside)
	$(BIN)/python requirements/audit.py

bench: setup ## the benchmarks beside the peers: evaluator, losses, trainer (about half an hour; needs a quiet machine)
	$(BIN)/python benchmarks/evaluator/compare.py
	$(BIN)/python benchmarks/losses/bench_losses.py
	$(BIN)/python benchmarks/training/bench_overhead.py
	$(BIN)/python benchmarks/training/bench_start.py

gpu: setup ## on a machine with a GPU: its tests and the benchmarks, into gpu-results.md to send in
	$(BIN)/python benchmarks/gpu.py

soak: setup ## an hour: new examples for the property tests, each allocation failing, and training killed and resumed at random moments
	PROPTEST_RNG_SEED=$$(date +%s) cargo test --workspace --exclude dml-eval-rs --release --quiet
	cargo test --package dml-eval --release --quiet --test out_of_memory -- --all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --hypothesis-profile=search tests/properties packages/dml-eval-rs/tests
	$(BIN)/python benchmarks/evaluator/random_cases.py $$(date +%s) 2000 300
	$(BIN)/python benchmarks/training/bench_soak.py 200 $$(date +%s)

mutants: setup ## long, half a minute for each: faults built into the evaluator, each of which the tests must find
	$(BIN)/python packages/dml-eval-rs/mutants/run.py

docs: setup .venv/.docs ## the site, into site/html: runs the tutorials, and fails for a warning or a dead link
	$(BIN)/python docs/site/build.py site

docs-links: docs ## the site's links to other hosts, too; needs the network
	$(BIN)/python -m sphinx -q -c docs/site -b linkcheck -D nb_execution_mode=off -d site/doctrees-links site/pages site/links

wheels: .venv/wheels/.installed ## a wheel of every package, into dist/; on Linux for manylinux_2_28
	rm -rf dist
	for package in dml-core dml-losses dml-train; do $(UV) build --quiet --wheel --package $$package --out-dir dist || exit 1; done
	cd packages/dml-eval-rs && PATH=$(CURDIR)/.venv/wheels/bin:$$PATH maturin build --quiet --release --locked $(ZIG) --out ../../dist
	$(BIN)/python packages/dml-eval-rs/rezip_wheel.py dist/dml_eval_rs-*.whl
	$(if $(ZIG),.venv/wheels/bin/auditwheel show dist/dml_eval_rs-*.whl)
	@ls -l dist

sdists: .venv/bin/uv ## a source distribution of every package and the wheels of pure Python, into dist/
	rm -rf dist
	for package in $(PACKAGES); do $(UV) build --quiet --sdist --package $$package --out-dir dist || exit 1; done
	for package in dml-core dml-losses dml-train; do $(UV) build --quiet --wheel --package $$package --out-dir dist || exit 1; done
	@ls -l dist

lock: ## pin the newest versions that the packages' ranges allow, with hashes
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade $(LOCKED_EXTRAS:%=--extra %) \
	  $(PACKAGES:%=--no-emit-package %) requirements/dev.in $(PACKAGES:%=packages/%/pyproject.toml) \
	  --output-file requirements/dev.txt
	for set in docs wheels; do \
	  $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    --constraint requirements/dev.txt requirements/$$set.in --output-file requirements/$$set.txt || exit 1; \
	done
	echo uv | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --constraint requirements/dev.txt - --output-file requirements/uv.txt

clean: ## remove what the verbs made, but not runs/
	rm -rf .venv target dist site

.venv/bin/uv: requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

.venv/.docs: .venv/.locked requirements/docs.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/docs.txt
	@touch $@

.venv/wheels/.installed: .venv/bin/uv requirements/wheels.txt
	$(UV) venv --quiet --clear --python $(BIN)/python .venv/wheels
	$(UV) pip install --quiet --python .venv/wheels/bin/python --require-hashes -r requirements/wheels.txt
	@touch $@

.venv/.locked: .venv/bin/uv requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.installed: .venv/.locked $(RUST) $(METADATA)
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation-package dml-eval-rs \
	  $(PACKAGES:%=--reinstall-package %) $(PACKAGES:%=-e packages/%)
	@touch $@
