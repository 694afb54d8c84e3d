# make coverage   the ten modules of quick rooms with the least tested, branches too
# make demo   the whole story on this machine: three hosts, check, launch, stop, resume
# make docs   the pages of docs/ as a site, in build/site
# make gpu    what only a GPU shows, in 9 minutes; attach build/gpu/report.md to an issue
# make test   what must be green before a change lands
# `PYTHON=python3 make gpu` chooses an interpreter; else the first whose torch sees a GPU.
CHOSEN := $(if $(filter environment command,$(origin PYTHON)),$(PYTHON))
GPU_OPTIONS ?=
PYTHON := .venv/bin/python
WORKERS ?= auto
TESTS ?= tests
# The tests run where only the wheel is to be found: .ci/wheel says how.
PYTEST := cd build/tree && PYTHONDONTWRITEBYTECODE= CLUSTERCTL_TESTED=wheel \
    "$(CURDIR)/build/venv/bin/python" -m pytest
# Folders too: theirs is the time of a deletion.
SOURCES := $(shell find clusterctl -not -name '__pycache__' -not -name '*.pyc')

# Rooms whose tests take seconds: most start no process.
ROOMS ?= checks facts inventory logs model network plan report

.PHONY: setup demo docs test lint style types pytest coverage bench gpu soak clean

setup: .venv/ready

.venv/ready: pyproject.toml .ci/setup
	@.ci/setup
	@touch $@

demo: setup
	@$(PYTHON) -m clusterctl sandbox demo

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo build/site/index.html

lint: style types

style: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types: setup
	$(PYTHON) -m mypy

# This folder's own time is that of a new file or one removed: build/tree has a link to each.
build/ready: . .venv/ready .ci/wheel README.md LICENSE $(SOURCES)
	@.ci/wheel
	@touch $@

# mypy uses one core, for a minute where nothing is cached: beside all the rest.
test: style
	@$(MAKE) --no-print-directory -j2 pytest types

pytest: build/ready
	@.ci/setup optional
	MAKEFLAGS= .ci/test -n $(WORKERS) --dist worksteal -m "not soak" --durations 10 $(TESTS)

coverage: setup
	@rm -f .coverage*
	$(PYTHON) -m coverage run -m pytest -q -n $(WORKERS) -m "not soak" $(ROOMS:%=tests/%)
	@$(PYTHON) -m coverage combine -q
	@$(PYTHON) -m coverage report --sort cover --include "$$(printf 'clusterctl/%s/*,' $(ROOMS))" | \
	    sed -n '1,12p;$$p'

# Pytest exits with 5 if TESTS has no test of a kind.
soak: build/ready
	$(PYTEST) -m soak --timeout 0 $(TESTS) || [ $$? = 5 ]
	$(PYTEST) -m hypothesis --hypothesis-profile soak --timeout 0 $(TESTS) || [ $$? = 5 ]

bench: setup .venv/ready-for-bench
	@for file in bench/[a-z]*.py; do $(PYTHON) "$$file" || exit 1; done

# Without setup: a GPU machine has a torch of its own, and perhaps no network.
gpu:
	@$(or $(CHOSEN),$(wildcard .venv/bin/python),python3) -m bench.gpu \
	    $(if $(CHOSEN),--python "$(CHOSEN)") $(GPU_OPTIONS)

.venv/ready-for-bench: .ci/setup
	@.ci/setup bench
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build dist
