# `make demo` and `make test` need Python 3.11 or later, make, and a network that reaches PyPI; they do the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench lock clean strace

help:  ## Show what can be made.
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create the virtual environment and install the pinned dependencies.

$(READY): requirements.lock pyproject.toml
	@echo "handoff: creating $(VENV) and installing the pinned dependencies ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "handoff: $(PYTHON) is too old: install Python 3.11 or later, or run make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "handoff: $(PYTHON) has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)
	@echo "handoff: ready; the command is $(BIN)/handoff"

demo: $(READY)  ## Record real traffic live, break one handoff, replay it exactly, and explain the failure.
	@PATH="$(abspath $(BIN)):$$PATH" sh examples/demo.sh

test: $(READY) strace  ## Run every test.
	@echo "handoff: running the tests on all cores (a few minutes) ..."
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

check: $(READY)  ## Run the linters, the type checker and the checks of layers, dependencies and spelling.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry journal engines cli
	$(BIN)/codespell
	sh .ci/determinism

bench: $(READY)  ## Measure the journal against its limits and peers.
	$(BIN)/python benchmarks/journal.py

lock: $(READY)  ## Pin the dependencies anew from pyproject.toml.
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --extra dev --all-build-deps \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --no-annotate --no-header \
	  --output-file requirements.lock pyproject.toml

strace:
	@command -v strace >/dev/null && exit 0; \
	echo "handoff: installing strace, which one test uses to count syncs ..."; \
	if [ "$$(id -u)" = 0 ]; then apt-get -qq update && apt-get -qq install -y strace >/dev/null; \
	elif command -v sudo >/dev/null; then sudo apt-get -qq update && sudo apt-get -qq install -y strace >/dev/null; \
	else echo "handoff: strace is missing: apt-get install strace"; exit 1; fi

clean:  ## Remove the virtual environment and what the tools left behind.
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
