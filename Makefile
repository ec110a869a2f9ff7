# What one does with this project. `make` alone lists it. Needs python3 (3.11 or newer) and, for demo and test, Java 17+.

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
NEWEST := VENV=.venv-newest CONSTRAINTS=

PIP_OPTIONS := $(if $(CONSTRAINTS),-c $(CONSTRAINTS),--upgrade --upgrade-strategy eager)

.DEFAULT_GOAL := help
# The checks must speak before the installation starts, under make -j too.
.NOTPARALLEL:
.PHONY: help install core sanitize demo test test-rest test-all test-python-core test-long test-newest newest test-oldest-spark newer-redis older-redis coverage bench constraints lint types docs site fix clean check-python check-java

help: ## list what can be made
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F'~' '{ printf "%-18s %s\n", $$1, $$2 }'

install: check-python $(STAMP) $(CORE_STAMP) ## make .venv and install everything the demo and the tests need, as constraints.txt says

core: install ## compile the native core anew, in place
	$(BIN)/python scripts/build_core.py $(ARGS)

demo: check-java check-python $(DEMO_STAMP) ## the main job: a year of flights through stream, workers and Spark (ARGS="--rows 5000" for a short one)
	$(BIN)/millstream demo $(ARGS)

# Bytecode is kept even where the environment says not to: the tests start hundreds of Python processes.
test test-rest test-all test-oldest-spark test-python-core test-long coverage: export PYTHONDONTWRITEBYTECODE =

RUN_TESTS := $(BIN)/python -m pytest -n 4 --dist loadfile

test: check-java install ## the tests of every change, in five minutes (ARGS="tests/engine -x -n0" for some, one at a time)
	$(RUN_TESTS) -m "not long and not full" $(ARGS)

test-rest: check-java install
	$(RUN_TESTS) -m "full and not long" $(ARGS)

test-all: check-java install ## all tests but the long campaigns; CI runs these
	$(RUN_TESTS) -m "not long" $(ARGS)

test-long: check-java install ## only the long campaigns
	$(BIN)/python -m pytest -m long $(ARGS)

coverage: install ## which modules make test leaves under 80 %
	$(BIN)/python scripts/covered.py -m "not long and not full" -n 4 --dist loadfile $(ARGS)

# What reaches the core's code; the same with -m long are its campaigns
CORE_TESTS := tests/engine tests/node/test_batch.py tests/node/test_no_memory.py tests/scripting/test_plain.py tests/node/test_replay.py tests/persistence/test_frame_twins.py tests/embedded/test_words.py tests/server/load/test_hostile_sockets.py

sanitize: install ## the native core's tests with checks of what it reads and writes (ARGS="-m long" for the campaigns)
	scripts/sanitize.sh $(BIN)/python $(CORE_TESTS) $(or $(ARGS),-m "not long")

test-oldest-spark: install ## a few of Spark's tests with the oldest PySpark that pyproject.toml allows, in .venv-oldest-spark
	VENV=$(VENV) scripts/oldest-spark.sh
	.venv-oldest-spark/bin/python -m pytest -m "spark_core and not long" -n 0 tests/spark $(ARGS)
	.venv-oldest-spark/bin/python -m pytest -m "not long" -n 0 tests/spark/archive/test_objects_page.py

# What has a double in C, where the one in Python is at work; the rest of the code is the same with both. Not those that
# hold the two against each other: they have done so already. Chosen by what they reach; 50 s of the processor in all.
PYTHON_CORE_TESTS := $(addprefix tests/,$(addsuffix .py,\
	$(addprefix engine/test_,entries packed pending lag machine idempotence ordered) \
	$(addprefix node/test_,batch blocking log snapshot transactions) \
	$(addprefix commands/test_,changes costs dump read_budgets refusals trimming) \
	conformance/test_transcripts scripting/test_plain persistence/test_frame persistence/test_damage persistence/test_log embedded/test_same))

test-python-core: export MILLSTREAM_CORE = python
test-python-core: install ## make test, of what has a double in C, with the Python core
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile $(PYTHON_CORE_TESTS) $(ARGS)

bench: install ## the server beside redis-server; writes docs/benchmarks.md (ARGS="--quick --output x.json" in 3 to 5 minutes, no page)
	$(BIN)/python -m bench.server $(ARGS)

newer-redis: ## put a Redis 8 into .servers, for the comparisons with a live server (SOURCE=... builds it from a checkout)
	scripts/newer-redis.sh $(SOURCE)

older-redis: install ## put a Redis 6.2 into .servers, the oldest that workers and the console are for
	VENV=$(VENV) scripts/older-redis.sh

newest: ## make .venv-newest with the newest of each dependency, and say what is newer than constraints.txt has it
	rm -f .venv-newest/.installed
	$(MAKE) install $(NEWEST)
	@echo "What is installed otherwise than constraints.txt says:"
	@.venv-newest/bin/python -m pip freeze --exclude-editable | diff constraints.txt - | grep '^[<>] [^#]' || echo "  nothing"

test-newest: newest ## make test with the newest of each dependency (.ci/run newest does all that CI does)
	$(MAKE) test $(NEWEST)

constraints: newest ## write constraints.txt anew; try make test-newest first, and commit what has passed
	@{ sed '/^[^#]/,$$d' constraints.txt; .venv-newest/bin/python -m pip freeze --exclude-editable; } > .constraints.new
	@mv .constraints.new constraints.txt

lint: install ## style: ruff's rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: install ## put in order what ruff can put in order by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install ## mypy, strict
	$(BIN)/mypy

docs: install ## write docs/promises.md and what the other documents have from the code anew
	$(BIN)/python -m scripts.reference
	$(BIN)/python scripts/promises.py

site: export NO_MKDOCS_2_WARNING = 1
site: install ## build the documents as a site, into site/; a link or an anchor that leads nowhere is an error
	$(BIN)/python -m mkdocs build --strict $(ARGS)

clean: ## remove .venv and everything made by running
	rm -rf .venv .venv-newest .venv-oldest-spark .sanitized .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-out site spark-warehouse metastore_db derby.log
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

# The installation compiles it too, but is not done again when only the core's source has changed.
$(CORE_STAMP): $(STAMP) $(wildcard src/millstream/_core/*.[ch])
	@$(BIN)/python scripts/build_core.py --if-possible
	@touch $@
