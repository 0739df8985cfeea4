# Everything this project does, by name: `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
UV_VERSION := 0.13.8
STAMP := $(VENV)/.ready
# Order of the tests, and their draws: the same each time, so that a run fails for faults alone.
SEED ?= 1
# What the demo serves; a name that the environment has for other things does not count.
MODEL := atom-tiny
FRESH := ATOM_TEST_SEEDS=fresh $(PY) -m pytest

# Images of Python set it often. Here processes start by the hundred: what is compiled is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment ---------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP) ## Make the environment in .venv (every extra a CPU machine can use)

# Bytecode once for all: the tests start many processes, and torch costs each 2 s more without.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or set PYTHON=" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --python $(PY) --require-hashes --compile-bytecode --requirements requirements/dev.txt
	$(BIN)/uv pip install --python $(PY) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: lock
lock: $(STAMP) ## Resolve the dependencies anew into requirements/*.txt (hash-pinned)
	$(PY) -m tools.lock

# ---- checks --------------------------------------------------------------------------------------

.PHONY: lint
lint: $(STAMP) ## Format and lint checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint images/*/Dockerfile*
	$(BIN)/shellcheck images/*/*/*.sh tools/*/*.sh
	$(PY) -m tools.check_file_size
	$(PY) -m tools.check_parameters
	$(PY) -m tools.suite.waits
	$(PY) -m tools.check_docstrings
	$(PY) -m tools.check_dead_code
	$(PY) -m tools.generate_reference --check
	$(PY) -m tools.check_kernels

.PHONY: types
types: $(STAMP) ## Static types
	$(BIN)/mypy

.PHONY: layers
layers: $(STAMP) ## Import contracts between the layers
	$(BIN)/lint-imports

.PHONY: generate
generate: $(STAMP) ## Write generated files anew (CRD and its copy in the chart, reference pages)
	$(PY) -m tools.generate_crds
	$(PY) -m tools.generate_reference

.PHONY: docs
docs: $(STAMP) ## Build the documentation site into site/; a missing page or a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir site

FILES :=
.PHONY: check
check: $(STAMP) ## Format, lint and the nearest tests of what changed against main, or of FILES="…"; a minute
	@$(PY) -m tools.check $(FILES)

# Parts of a suite run side by side: checks, integration, engine, units, kernels, operator, cluster.
SUITE = @$(PY) -m tools.suite $(1) --seed $(SEED) $(if $(DEBTS),--refuse-debts)
PARTS = $(addprefix --part ,$(1))
# Set by CI: a skip that neither has an owner nor is accepted fails the run.
DEBTS :=

.PHONY: test
test: $(STAMP) ## This commit works: checks, and every class of fault by its smallest instance
	$(call SUITE,test)

.PHONY: test-all
test-all: $(STAMP) ## The tests that make test leaves out: whole matrices, other projects' controllers
	$(call SUITE,all)

.PHONY: test-unit
test-unit: $(STAMP) ## Those tests of make test that need no cluster
	$(call SUITE,test $(call PARTS,integration engine units kernels operator))

.PHONY: test-integration test-engine test-operator test-interpreted
test-integration: $(STAMP) ## Engines and servers as a whole, in their processes
	$(call SUITE,test $(call PARTS,integration))
test-engine: $(STAMP) ## The engine's parts, with the kernels compiled for every card
	$(call SUITE,test $(call PARTS,engine units))
test-operator: $(STAMP) ## The operator, and all that is no engine: tools, documents, pages
	$(call SUITE,test $(call PARTS,operator))
test-interpreted: $(STAMP) ## The kernels in Triton's interpreter, which is one process for minutes
	$(call SUITE,test $(call PARTS,kernels))

.PHONY: test-gpu
test-gpu: $(STAMP) ## The parity matrix on this machine's GPU; writes docs/results/gpu-parity.md
	$(PY) -m tools.gpu_tests

.PHONY: test-aiter
test-aiter: $(STAMP) ## AITER's adapters with the real package, on this machine's GPU
	$(PY) -m pytest -m aiter tests/engine/aiter/test_real_aiter.py

.PHONY: test-cluster
test-cluster: $(STAMP) ## Chart, API server and end-to-end tests on a real Kubernetes
	@$(PY) -m tools.cluster_tests

.PHONY: agents
agents: $(STAMP) ## Install the agents, clients and routers that test-long runs, from npm and PyPI into ~/.cache
	$(PY) -m tools.agents

.PHONY: browser
browser: ## Install Debian's Chromium, in which test-long opens the pages
	@command -v chromium >/dev/null \
		|| { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core; }

.PHONY: test-long
test-long: agents browser ## The tests that take minutes each, and random search with fresh seeds
	$(FRESH) -m "(slow or hypothesis) and not cluster and not gpu and not aiter"
	@$(PY) -m tools.cluster_tests --long

# ---- cluster and demo ----------------------------------------------------------------------------

# Of the command line alone: what the environment has under these names is another's.
VERSION :=
KEY :=
IMAGES :=
DOWNLOADS :=

.PHONY: release
release: $(STAMP) ## Make every file of a release of this commit in dist/ (VERSION=, KEY=FILE, DOWNLOADS=URL, IMAGES="NAME=…@sha256:…")
	$(PY) -m tools.release build $(addprefix --version ,$(VERSION)) $(addprefix --key ,$(KEY)) $(addprefix --downloads ,$(DOWNLOADS)) $(addprefix --image ,$(IMAGES))

.PHONY: images
images: $(STAMP) ## Build the operator's and the engine's container images
	$(PY) -m devcluster images

.PHONY: demo
demo: $(STAMP) ## From nothing to a streamed answer on a real Kubernetes (MODEL=smollm2: a trained model; atom-tiny-eyes: pictures)
	@$(PY) -m tools.demo up --model $(MODEL)

.PHONY: demo-down
demo-down: $(STAMP) ## Remove the demo and stop the embedded cluster
	@$(PY) -m tools.demo down

.PHONY: cluster-up
cluster-up: $(STAMP) ## Start the embedded Kubernetes
	$(PY) -m devcluster up

.PHONY: cluster-down
cluster-down: $(STAMP) ## Stop the embedded Kubernetes; binaries stay cached
	$(PY) -m devcluster down

.PHONY: clean
clean: ## Remove the environment and caches of the checkout
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
