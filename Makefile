# make quickstart: set up, run the quickstart sweep, write its report.   make test: the tests that need nothing else.
PYTHON ?= python3
BIN := .venv/bin
# One thread a process: bit-reproducible runs, and no run takes another's core.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# What one process has compiled the next need not: the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart setup test test-runs test-programs test-network test-kernels test-cluster cluster-up cluster-down torture lint benchmark clean

quickstart: setup
	$(BIN)/python launch.py -m experiment=quickstart

setup: .venv/installed

# Says what it does, and goes on after an interruption: the record .venv/installed is written last.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) setup_environment.py

PYTEST := $(BIN)/python -m pytest -q -n auto

# What needs only the installed packages; tests/needs.py says what the others need. The rest is skipped with its reason.
test: setup
	$(PYTEST) --dist worksteal

# Launchers with their workers, real training, and slower implementations by others.
test-runs: setup
	$(PYTEST) --dist loadgroup --require processes,train,peer,compiler,root

# A browser and LaTeX.
test-programs: setup
	$(PYTEST) --dist loadgroup --require browser,latex,bash

# Whether every supported platform can be installed, as the package registry has it.
test-network: setup
	$(BIN)/python -m pytest -q --require network

# The numbers under every kernel of linear algebra that this processor can run.
test-kernels: setup
	$(BIN)/python -m tests.kernels

# On a SLURM and a Ray that they start, and stop, themselves (root; Debian's packages).
test-cluster: setup
	bash tests/cluster/lab/install.sh
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --require slurm,ray

# A throw-away SLURM on this machine: `source tests/cluster/lab/lab.env` makes it the one that sbatch speaks to.
cluster-up:
	bash tests/cluster/lab/install.sh
	bash tests/cluster/lab/start.sh

cluster-down:
	bash tests/cluster/lab/stop.sh --wipe

torture: setup
	$(BIN)/python -m tests.torture --rounds 200

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: setup
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.alpha
	$(BIN)/python -m benchmarks.speculative
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.pool
	$(BIN)/python -m benchmarks.ray
	$(BIN)/python -m benchmarks.slurm
	$(BIN)/python -m benchmarks.status
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.validity
	$(BIN)/python -m benchmarks.analysis

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
