# make demo   the whole story on this machine: three hosts, check, launch, stop, resume
# make test   what must be green before a change lands
PYTHON := .venv/bin/python
WORKERS ?= auto
TESTS ?= tests

.PHONY: setup demo test lint bench soak clean

setup: .venv/ready

.venv/ready: pyproject.toml .ci/setup
	@.ci/setup
	@touch $@

demo: setup
	@$(PYTHON) -m clusterctl sandbox demo

lint: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

test: lint
	$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal -m "not soak" --durations 10 $(TESTS)

soak: setup
	$(PYTHON) -m pytest -m soak --timeout 0 $(TESTS)

bench: setup .venv/ready-for-bench
	@for file in bench/[a-z]*.py; do $(PYTHON) "$$file" || exit 1; done

.venv/ready-for-bench: .ci/setup
	@.ci/setup bench
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build dist
