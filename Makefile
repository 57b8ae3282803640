# Each target makes the environment it needs; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv

.PHONY: check lint test dask-suite dask-suite-short benchmarks

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[test]'
	touch $@

check: lint test

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest

# Dask's own tests with every scheduler replaced by ours, and by threads for comparison: about half an hour.
dask-suite: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[test,dask-suite]'
	$(VENV)/bin/python -m tests.dask_suite --whole

# The part of it that continuous integration runs.
dask-suite-short: $(VENV)/installed
	$(VENV)/bin/python -m tests.dask_suite

benchmarks: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[benchmarks]'
	$(VENV)/bin/python -m benchmarks
