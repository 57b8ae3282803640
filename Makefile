# Each target makes the environment it needs; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv

STRESS = tests/heap_stress.c dask_mars/worker/_heap.c
STRESS_FLAGS = -std=c11 -g -O1 -Wall -Wextra -pthread

.PHONY: check lint test stress soak dask-suite dask-suite-short benchmarks

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
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

# The C code under the sanitizers and valgrind, for longer than the tests do it.
stress:
	mkdir -p build
	$(CC) $(STRESS_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all $(STRESS) -o build/stress-address
	build/stress-address 100000
	$(CC) $(STRESS_FLAGS) -fsanitize=thread $(STRESS) -o build/stress-thread
	build/stress-thread 20000
	$(CC) $(STRESS_FLAGS) $(STRESS) -o build/stress
	valgrind -q --error-exitcode=3 build/stress 3000
	valgrind -q --tool=helgrind --error-exitcode=3 build/stress 2000

# Random work under random troubles: half an hour. A short form of it is among the tests.
soak: $(VENV)/installed
	$(VENV)/bin/python -m benchmarks soak

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
