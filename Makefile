# Development tasks; `make` lists them. Needs python3 (3.11 or newer) and, for demo and test, Java 17+.

PYTHON ?= python3
ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
# The versions that are installed; empty for the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# Written last, so that an installation cut short is done again; older than pyproject.toml means install again. The demo
# needs a part of what the tests need, and is what a newcomer runs first.
DEMO_STAMP := $(VENV)/.installed-demo
STAMP := $(VENV)/.installed
CORE_STAMP := $(VENV)/.core

PIP_OPTIONS := $(if $(CONSTRAINTS),-c $(CONSTRAINTS),--upgrade --upgrade-strategy eager)

.DEFAULT_GOAL := help
# The checks must report before the installation starts, under make -j too.
.NOTPARALLEL:
.PHONY: help install core demo test test-rest test-all test-long bench lint fix types docs site release clean check-python check-java

help: ## list these targets
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F'~' '{ printf "%-18s %s\n", $$1, $$2 }'

install: check-python $(STAMP) $(CORE_STAMP) ## create .venv with everything the demo and the tests need, as constraints.txt pins it

core: install ## compile the native core again, in place
	$(BIN)/python scripts/build_core.py $(ARGS)

demo: check-java check-python $(DEMO_STAMP) ## send a year of flights through stream, workers and Spark (ARGS="--rows 5000" for a short run)
	PYTHONPATH=examples $(BIN)/python -m flights $(ARGS)

# Bytecode is kept even where the environment forbids it: the tests start hundreds of Python processes.
test test-rest test-all test-long: export PYTHONDONTWRITEBYTECODE =

# TIER=cold: all entries of sealed nodes are cold, in the tests of the server's core, of stores and of replication
TIER ?=
TIER_TESTS := $(if $(filter cold,$(TIER)),tests/engine tests/commands tests/node tests/conformance tests/embedded tests/replication,)
test: export MILLSTREAM_TEST_COLD = $(filter cold,$(TIER))

RUN_TESTS := $(BIN)/python -m pytest -n 4 --dist loadfile

test: check-java install ## run the tests of every change, in five minutes (ARGS="tests/engine -x -n0" for some, one at a time)
	$(RUN_TESTS) -m "not long and not full" $(TIER_TESTS) $(ARGS)

test-rest: check-java install
	$(RUN_TESTS) -m "full and not long" $(ARGS)

test-all: check-java install ## run all tests but the long campaigns, as CI does
	$(RUN_TESTS) -m "not long" $(ARGS)

test-long: check-java install ## run the long campaigns, resumable, each under 45 minutes
	$(BIN)/python -m pytest -m long $(ARGS)

bench: install ## measure the server beside redis-server, and write docs/benchmarks.md (ARGS="--quick --output x.json": 3 to 5 minutes, no page)
	$(BIN)/python -m bench.server $(ARGS)

lint: install ## check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: install ## apply what ruff can fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install ## check types with mypy, strict
	$(BIN)/mypy

docs: install ## write docs/promises.md and the generated parts of the reference
	$(BIN)/python -m scripts.reference
	$(BIN)/python scripts/promises.py

site: export NO_MKDOCS_2_WARNING = 1
site: install ## build the documents as a site into site/; a broken link or anchor is an error
	$(BIN)/python -m mkdocs build --strict $(ARGS)

release: install ## build sdist and wheels into dist/, install each in a clean environment and try it
	$(BIN)/python scripts/release.py $(ARGS)

clean: ## remove .venv and everything that running creates
	rm -rf .venv .venv-newest .venv-oldest-spark .sanitized .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-out dist site spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@PYTHON="$(PYTHON)" scripts/prerequisites.sh python

check-java:
	@scripts/prerequisites.sh java

$(DEMO_STAMP): pyproject.toml $(CONSTRAINTS)
	@"$(PYTHON)" -m venv $(VENV)
	@scripts/install.sh $(BIN)/python demo $(PIP_OPTIONS)
	@touch $@

$(STAMP): $(DEMO_STAMP)
	@scripts/install.sh $(BIN)/python dev $(PIP_OPTIONS)
	@touch $@

# Installing compiles the core too, but is not repeated when only the source of the core has changed.
$(CORE_STAMP): $(STAMP) $(wildcard src/millstream/_core/*.[ch])
	@$(BIN)/python scripts/build_core.py --if-possible
	@touch $@
