# Two commands: `make train` trains a team, `make test` tests the project. Each sets up everything that it needs.
PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(wildcard protos/marless/rpc/v1/*.proto)
JOB ?= examples/spread.yaml
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: train test test-slow test-gpu check format protos bench bench-peers clean

train: .venv/.train
	$(BIN)/marless train $(JOB)

test: .venv/.dev
	$(BIN)/python -m pytest

test-slow: .venv/.dev
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/.dev
	$(BIN)/python -m pytest -m gpu

# Format, lint, types, fresh protos, architecture; everything but the tests.
check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m protos.check
	$(BIN)/python -m pytest tests/test_architecture.py

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: .venv/.dev
	$(BIN)/python -m protos.generate .

# Prints every table of docs/benchmarks.md for this machine; peers are measured too once `make bench-peers` installed them.
bench: .venv/.dev
	$(BIN)/python -m bench.param_store
	$(BIN)/python -m bench.cold_start
	$(BIN)/python -m bench.round_overhead
	$(BIN)/python -m bench.throughput
	$(BIN)/python -m bench.time_to_return

bench-peers: .venv/.dev
	$(BIN)/python -m bench.peers.install

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "marless needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

.venv/.train: pyproject.toml | .venv/bin/python
	$(PIP) -e ".[learner,embedded,plot]"
	@touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	$(PIP) -e ".[learner,embedded,plot,mpe,dev]"
	@touch $@ .venv/.train
