# make quickstart   sets up what is missing, then tunes the project's own base with Ferret beside FedAvg
# make test         sets up what is missing, then runs style, type and all tests

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart

.PHONY: setup quickstart test lint clean nats

setup: $(VENV)/ready

# torch goes first: anything else that depends on it would bring a build with gigabytes of CUDA
$(VENV)/ready: pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	@$(BIN)/python -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	@echo "Setting up (torch first; a few minutes the first time) ..."
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	@$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

quickstart: setup
	@rm -rf $(QUICKSTART)
	@$(BIN)/fedseed compare quickstart-fedavg quickstart-ferret --out $(QUICKSTART)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# the tests of the federation need nats-server; FEDSEED_WITHOUT_NATS=1 leaves them out
nats:
	@command -v nats-server >/dev/null || [ -n "$$FEDSEED_WITHOUT_NATS" ] || [ "$$(id -u)" != 0 ] || \
	  ! command -v apt-get >/dev/null || (apt-get update -qq && apt-get install -y -qq nats-server) >/dev/null 2>&1 || \
	  echo "nats-server could not be installed: the tests that need it will fail and say so"

test: lint nats
	@$(BIN)/python -m pytest -n auto --dist loadfile

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
