# make quickstart   sets up what is missing, then tunes the project's own base with FedAvg, Ferret, and Ferret in bits
# make check        before a commit: style, types, the quick tests
# make test         style, and all that a user relies on
# make slow         types, and the rest of the tests: wider matrices, long series of kills
# make gpu        everything that is to be tried on a GPU, where there is one; the report goes to gpu-report.md
# make trackers   installs all trackers (W&B) and runs their tests
# make mutate       makes small mistakes in the code and sees whether a test fails (scripts/mutate.py)
# make docs       the documentation as a site, in build/site; its notebook is run (make notebook stores its outputs)
# make reproduced makes the pages of the papers' items in build/reproduced, from the results in docs/reproduced
# make dist       builds both packages into dist/, checks them and tries their wheels, as a release does
# make packages   installs the wheels and all that they need into an empty environment, and does what the README says
# each of them sets up what is missing first

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart
GPU_PYTHON ?= python3

# workers take from each other what is left; each has one thread (tests/conftest.py). One more than there are cores, as a
# third of the time is waiting for processes and servers
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 1)))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15

# types beside the tests: a minute of one core, while tests wait now and then. Both must pass
define typed
@mkdir -p build; $(BIN)/mypy >build/mypy.txt 2>&1 & types=$$!; $(PYTEST) $(1); tested=$$?; \
  wait $$types; typed=$$?; cat build/mypy.txt; exit $$((tested || typed))
endef

define style
@$(BIN)/ruff check . && $(BIN)/ruff format --check .
endef

# what Python has compiled is kept, whatever the environment says: tests start a hundred processes, which all import it
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup quickstart check test slow trackers gpu docs docs-serve reproduced notebook dist packages mutate lint kernels clean nats

setup: $(VENV)/ready

# torch goes first: anything else that depends on it would bring a build with gigabytes of CUDA. byzfl, which rules are
# tested beside, would bring torchvision, and with it another torch: it comes alone
$(VENV)/ready: pyproject.toml papers/pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	@$(BIN)/python -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	@echo "Setting up (torch first; a few minutes the first time) ..."
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	@$(BIN)/pip install --quiet --editable '.[dev]' --editable ./papers
	@$(BIN)/pip install --quiet --no-deps byzfl==0.0.11 || echo "byzfl: no oracle, its tests are skipped"
	@touch $@

quickstart: setup
	@rm -rf $(QUICKSTART)
	@$(BIN)/fedseed compare quickstart-fedavg quickstart-ferret quickstart-bits --out $(QUICKSTART)

lint: setup
	$(style)
	@$(BIN)/mypy

# what numba compiles once for a tree; seconds where it has
kernels: setup
	@$(BIN)/python scripts/compile_kernels.py

# the tests of the network need nats-server; FEDSEED_WITHOUT_NATS=1 leaves them out
nats:
	@command -v nats-server >/dev/null || [ -n "$$FEDSEED_WITHOUT_NATS" ] || [ "$$(id -u)" != 0 ] || \
	  ! command -v apt-get >/dev/null || (apt-get update -qq && apt-get install -y -qq nats-server) >/dev/null 2>&1 || \
	  echo "nats-server could not be installed: the tests that need it will fail and say so"

check: kernels
	$(style)
	$(call typed,-m "not long and not slow")

test: kernels nats
	$(style)
	@$(PYTEST)

# what `make test` leaves out: the other tests, and types
slow: export FEDSEED_SLOW := 1
slow: kernels nats
	$(call typed,-m slow)

# hundreds of megabytes that only these tests need
trackers: setup
	@$(BIN)/pip install --quiet '.[trackers]'
	@FEDSEED_SLOW=1 $(BIN)/python -m pytest tests/tracking

# with the torch that is there (PYTHON's own, say): the one that `setup` brings has no CUDA
gpu:
	@PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu.py --out gpu-report.md $(GPU)

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

# curves, tables and claims of the papers' items; no run is made again
reproduced: setup
	@$(BIN)/python scripts/reproduced.py --pages build/reproduced

docs-serve: docs  # a browser searches no site that is opened from the disk
	@$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory build/site

notebook: setup
	@$(BIN)/python scripts/run_notebook.py

# apart from .venv, as it is made in a release: tools, then an empty environment without torch, as a coordinator's
dist:
	@rm -rf dist build/dist && $(PYTHON) -m venv build/dist/tools && $(PYTHON) -m venv build/dist/empty
	@build/dist/tools/bin/pip install --quiet build twine
	@build/dist/tools/bin/python -m build --outdir dist . && build/dist/tools/bin/python -m build --outdir dist papers
	@build/dist/tools/bin/twine check --strict dist/*
	@build/dist/empty/bin/pip install --quiet dist/fedseed-*.whl && build/dist/empty/bin/pip install --quiet --no-deps dist/fedseed_papers-*.whl
	@build/dist/empty/bin/fedseed --version && build/dist/empty/bin/fedseed list recipes >/dev/null && ls -l dist

packages: setup
	@FEDSEED_SLOW=1 FEDSEED_FROM_INDEX=1 $(BIN)/python -m pytest tests/test_packages.py

mutate: setup
	@$(BIN)/python scripts/mutate.py --jobs 2 $(TARGETS)

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
