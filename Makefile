# make demo         twenty owners tune an SVM: federated, and alone (a table and a picture in out/)
# make federation   a server and five owners, each a process of its own, do so through a network
# make test         the tests: every behavior, of each method that has it from no other
# make test-all     the slow ones too, and float64: what .ci/run runs
# make test-full    more seeds, sizes and settings of the same
# make check        ruff and pyright
# make docs         the documentation, in site/index.html
#
# Each sets up what it needs in .venv and needs only make and Python 3.11 or newer:
# another one than python3 with `make PYTHON=python3.13 ...`.

PYTHON ?= python3
VENV ?= .venv
# What `make demo` passes on: make demo ARGS="--seeds 10"
ARGS ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --quiet --durations 20
# A process for each of two cores: a third would compile again what the others have. With BLAS threads
# of their own they would only wait for each other.
test test-%: export OMP_NUM_THREADS = 1
test test-%: export OPENBLAS_NUM_THREADS = 1
# Workers share compiled programs, and the next run loads them. `make clean` empties the folder.
test test-%: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.cache/compiled
test test-%: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
# Each lot starts workers anew: with the bytecode of the lot before, they have the tests sooner.
test test-%: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo federation test test-slow test-all test-full test-float64 test-fast test-faults test-long check lint format docs clean
.DEFAULT_GOAL := demo

demo: $(VENV)/ready-demo
	$(BIN)/python -m jaxbo demo $(ARGS)

# Programs that it has compiled are kept for the next time. XLA would log two lines for each that is found.
federation: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.cache/compiled
federation: export TF_CPP_MIN_LOG_LEVEL = 3
federation: $(VENV)/ready-demo,flower
	$(BIN)/python federation/start.py

# Most of the time goes into compiling. So tests say what they need (`markers` in pyproject.toml), and are
# run in three lots: compiled as users have it, such that bits are kept, and as quickly as can be.
# Those of a second or less, and for each behavior of a method at least one.
QUICK := not (slow or full or long)
LOT := $(QUICK)
# The files with such a marker: a lot of few files does not wait for the rest to be collected.
MARKED = $$(grep -rl --include='test_*.py' 'mark\.$(1)\b' tests)
test test-slow: export JAX_ENABLE_X64 = 0
test test-slow: $(VENV)/ready-test
	$(PYTEST) --compile users -m "users and $(LOT)" $(call MARKED,users)
	$(PYTEST) --compile bitwise -m "bitwise and not users and $(LOT)" $(call MARKED,bitwise)
	$(PYTEST) --compile roughly -m "not bitwise and not users and $(LOT)"

test-slow: LOT := slow and not (full or long)

# The slow ones too, in the same processes, and float64.
test-all: LOT := not (full or long)
test-all: test test-float64

# More seeds, sizes and settings of the same, and slower checks of experiments.
test-full: LOT := full and not long
test-full: export JAX_ENABLE_X64 = 0
test-full: $(VENV)/ready-test
	$(PYTEST) --compile bitwise -m "(bitwise or users) and $(LOT)"
	$(PYTEST) --compile roughly -m "not bitwise and not users and $(LOT)"
	JAX_ENABLE_X64=1 $(PYTEST) --compile roughly -m "float64 and (slow or full) and not long" \
		$(call MARKED,float64)

# Of the tests in float64 the quick ones, in `test-all` too: `test-full` has the others.
test-float64: export JAX_ENABLE_X64 = 1
test-float64: $(VENV)/ready-test
	$(PYTEST) --compile roughly -m "float64 and $(QUICK)" $(call MARKED,float64)

# Import, the shapes of a run of each method, types: for the loop of writing.
test-fast: export JAX_ENABLE_X64 = 0
test-fast: $(VENV)/ready-dev
	$(BIN)/python -m pytest --quiet --compile roughly tests/test_packaging.py tests/algos/test_contract.py \
		-k "scanned or imported"
	$(BIN)/pyright --pythonpath $(BIN)/python

# With processes: an owner who is still evaluating at the deadline, and the death of a SuperLink. The machine is
# theirs alone, because a deadline is a time.
test-faults: $(VENV)/ready-test
	$(BIN)/python -m pytest --quiet -m long -k deadline tests/federation/test_processes.py

# Three SuperNodes: ten rounds of two methods, and some killed. A process killed at each call that changes
# files, processes that race for one checkpoint. A quarter of an hour of starting processes.
test-long: $(VENV)/ready-test
	$(BIN)/python -m pytest --quiet -m long

check: lint

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A warning is an error. Pages and pictures are read where they are; only site/ and docs/drawn/ are written.
# The latter has the gallery's pages. Programs of the gallery that were compiled are kept for the next time.
docs: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.cache/compiled
docs: export TF_CPP_MIN_LOG_LEVEL = 3
docs: $(VENV)/ready-docs
	$(BIN)/python -m sphinx -E -W --keep-going --quiet -d .cache/doctrees docs site

# One stamp for each extra of pyproject.toml. Written last: an installation that broke off is
# taken up again.
$(VENV)/ready-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "jaxbo needs Python 3.11 or newer, this is $$($(PYTHON) --version 2>&1 || :):" \
			"make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) out site docs/drawn .cache .pytest_cache .ruff_cache .hypothesis
