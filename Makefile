# make demo         twenty owners tune an SVM: alone, federated, at random (a table and a picture in out/)
# make federation   a server and five owners, each a process of its own, do so through a network
# make test         the tests, in float32 and, of the numerics and the contract, in float64
# make lint         ruff and pyright
#
# Each sets up what it needs in .venv and needs only make and Python 3.11 or newer:
# another one than python3 with `make PYTHON=python3.13 ...`.

PYTHON ?= python3
VENV ?= .venv
# What `make demo` passes on: make demo ARGS="--seeds 10"
ARGS ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist worksteal --quiet
# Three processes for two cores, because some tests wait for processes of their own; with BLAS
# threads of their own they would only wait for each other.
test-%: export OMP_NUM_THREADS = 1
test-%: export OPENBLAS_NUM_THREADS = 1

.PHONY: demo federation test test-long test-float32 test-float64 lint format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/ready-demo
	$(BIN)/python -m jaxbo demo $(ARGS)

federation: $(VENV)/ready-demo,flower
	$(BIN)/python federation/start.py

test: test-float32 test-float64

# Most of the time goes into compiling, so only plain FTS, and what rounding could spoil, is compiled
# as users have it.
CONTRACT := tests/algos/test_contract.py
EXACT := $(patsubst %,tests/kernels/processes/test_%.py,features posterior gp covariance) \
	tests/kernels/test_linalg.py tests/privacy/test_mechanism.py
FTS := FTS and not DP and not ranked and not pooled and not once and not target
# Of the contract, what compares statistics, values within a tolerance, or the bits of random draws alone.
ROUGH := beats or seeds_in or draws or rounded_integers or finite_set or plateau or evaluations_fail

# Three SuperNodes: ten rounds of two methods, and some killed. A process killed at each call that changes
# files, processes that race for one checkpoint. A quarter of an hour of starting processes.
test-long: $(VENV)/ready-test
	$(BIN)/python -m pytest --quiet -m long

test-float32: export JAX_ENABLE_X64 = 0
test-float32: $(VENV)/ready-test
	$(PYTEST) $(CONTRACT) $(EXACT) -k "$(FTS) or not contract"
	$(PYTEST) --compile bitwise -k "contract and not ($(FTS) or $(ROUGH)) or not contract and bit_for_bit"
	$(PYTEST) --compile roughly $(patsubst %,--ignore=%,$(EXACT)) \
		-k "contract and ($(ROUGH)) and not ($(FTS)) or not contract and not bit_for_bit"

# The contract traces every method in float64.
DENSE := $(patsubst %,tests/%.py,kernels/processes/test_nystrom kernels/choosing/test_exploration \
	kernels/models/test_pooled algos/test_cepe)
test-float64: export JAX_ENABLE_X64 = 1
test-float64: $(VENV)/ready-test
	$(PYTEST) --compile bitwise $(CONTRACT) $(EXACT) $(DENSE) \
		-k "not test_cepe or algorithm_1 or s_cepe_is_cepe or dense_formula"

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

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
	rm -rf $(VENV) out .pytest_cache .ruff_cache .hypothesis
