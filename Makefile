# Each target makes the environment it needs; PYTHON chooses the interpreter.
PYTHON ?= python3
VENV ?= .venv

STRESS = tests/heap_stress.c dask_mars/store/_heap.c
STRESS_STREAMS = tests/streams_stress.c dask_mars/expressions/_streams.c
BLOCKS_STRESS = tests/blocks_stress.c dask_mars/expressions/_blocks.c dask_mars/expressions/_loops.c dask_mars/expressions/_sums.c
HISTOGRAM_STRESS = tests/histogram_stress.c dask_mars/expressions/_histogram.c
STRESS_FLAGS = -std=c11 -g -O1 -Wall -Wextra -pthread
INCLUDES = import numpy, sysconfig; print("-I" + numpy.get_include(), "-I" + sysconfig.get_paths()["include"])

.PHONY: check lint test slow stress soak clients clients-short fuzz benchmarks gallery docs

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
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m ''

# All that is slow, also what `.ci/run` leaves out: the nightly run. The site shows what its notebooks print.
slow: $(VENV)/installed-docs
	GALLERY_OUTPUT=build/gallery $(VENV)/bin/python -m pytest -n 2 --dist loadfile -m slow

# The C code under the sanitizers and valgrind, for longer than the tests do it.
stress: $(VENV)/installed
	mkdir -p build
	$(CC) $(STRESS_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all $(STRESS) -o build/stress-address
	build/stress-address 100000
	$(CC) $(STRESS_FLAGS) -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all \
		-I $$($(VENV)/bin/python -c 'import numpy; print(numpy.get_include())') $(STRESS_STREAMS) -o build/stress-streams
	build/stress-streams 200000
	$(CC) $(STRESS_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all $(HISTOGRAM_STRESS) -lm \
		-o build/stress-histogram
	build/stress-histogram 20000
	$(CC) $(STRESS_FLAGS) -fsanitize=thread $(STRESS) -o build/stress-thread
	build/stress-thread 20000
	$(CC) $(STRESS_FLAGS) $(STRESS) -o build/stress
	valgrind -q --error-exitcode=3 build/stress 3000
	valgrind -q --tool=helgrind --error-exitcode=3 build/stress 2000
	for sanitizer in address,undefined thread; do \
		$(CC) $(STRESS_FLAGS) -fsanitize=$$sanitizer -fno-sanitize-recover=all \
			$$($(VENV)/bin/python -c '$(INCLUDES)') $(BLOCKS_STRESS) -lm -o build/stress-blocks \
		&& build/stress-blocks 20000 || exit 1; \
	done

# Random work under random troubles: half an hour. A short form of it is among the tests.
soak: $(VENV)/installed
	$(VENV)/bin/python -m tests.soak

# The tests of Dask itself and of libraries that use it, each in an environment of its own, with every scheduler
# replaced by ours, and by threads for comparison: an hour and a half. SUITE=name runs one of them.
clients: $(VENV)/installed
	$(VENV)/bin/python -m tests.clients $(addprefix --suite ,$(SUITE))

# The part of it that continuous integration runs.
clients-short: $(VENV)/installed
	$(VENV)/bin/python -m tests.clients --short

# Random programs, computed by Dask's synchronous scheduler and by ours: an hour.
fuzz: $(VENV)/installed
	$(VENV)/bin/python -m tests.fuzz --seconds 3600

benchmarks: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[benchmarks]'
	$(VENV)/bin/python -m benchmarks

$(VENV)/installed-docs: $(VENV)/installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[docs,gallery,web]'
	touch $@

# The notebooks, with what they print and draw: a minute.
build/gallery/executed: $(VENV)/installed-docs $(wildcard docs/gallery/*.py)
	$(VENV)/bin/python docs/hooks/gallery.py build/gallery
	touch $@

gallery: build/gallery/executed

# The documentation site, in build/site. Warnings are errors.
docs: build/gallery/executed
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
