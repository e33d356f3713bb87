# Everything a reader or contributor runs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
SITE_TOOLS := $(VENV)/.docs
GENERATED := $(VENV)/.generated
# uv selects from uv.lock, and pip installs from the index that it is configured with. The selection is complete, so
# pip has nothing to resolve.
EXPORT := uv export --quiet --frozen --no-emit-project --no-header
HASHED := pip install --disable-pip-version-check --no-deps --require-hashes
# No other index may get into the lock file.
PUBLIC := --default-index https://pypi.org/simple
# Not spark-connect: where pandas is installed, each worker of Spark loads it, which takes half a second. 
ALL_PROGRAMS := --extra namesrv --extra broker-agent --extra nsctl
CONTRIBUTOR := $(ALL_PROGRAMS) --extra spark --extra otel --extra console

# Tests start thousands of processes, which must not all compile the same modules first.
unexport PYTHONDONTWRITEBYTECODE

# What a newcomer does without; the markers stand in pyproject.toml.
REST := spark or fuzz or skew or slow
# Tests wait more than they compute, so six at a time keep two cores busy; four where Spark or an engine's threads take
# part. The folders with the longest files come first.
SIX := -n 6 --dist loadfile --no-loadscope-reorder
FOUR := -n 4 --dist loadgroup --no-loadscope-reorder

# What runs beside something else is printed when it has ended, if this make can do that.
APART := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.DEFAULT_GOAL := help
ifndef BESIDE
.NOTPARALLEL:
endif
.PHONY: help install setup engine protos demo demo-rocketmq test test-rest format fuzz lint lint-python lint-engine lint-prose docs wheel images dist lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) $(GENERATED)  ## Make .venv with the name server, the agent and nsctl, without Spark; with the native engine where cargo is found

setup: $(READY) $(GENERATED)  ## Make .venv for contributors: all programs, Spark and a Java for it, the tools of make lint and make test

$(INSTALLED): uv.lock
	$(call make_venv,--no-dev $(ALL_PROGRAMS))
	@touch $@

$(READY): uv.lock
	$(call make_venv,$(CONTRIBUTOR))
	@touch $@

# The engine is built while pip downloads. Its script does nothing where a wheel is newer than the engine's sources.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or later is needed: make PYTHON=/path/to/python3.11'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@sh engine/build.sh $(BIN)/pip & \
	{ $(BIN)/$(HASHED) -r deploy/uv.txt && $(BIN)/$(EXPORT) $(1) -o $(VENV)/requirements.txt && \
		$(BIN)/$(HASHED) -r $(VENV)/requirements.txt; } || { kill $$!; exit 1; }; \
	wait
	@sh engine/install.sh $(BIN)/pip
endef

$(GENERATED): pyproject.toml protos/generate.py route_pipeline/spark_autoload.py $(shell find protos -name '*.proto')
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

engine:  ## Build the native engine and install it, where cargo 1.85 or later is found; or install ENGINE_WHEEL=its wheel
	@sh engine/build.sh $(BIN)/pip
	@sh engine/install.sh $(BIN)/pip

protos: $(GENERATED)  ## Install the project in place and generate the gRPC code from protos/ into gen/

demo: setup  ## Two name servers, a master and a slave: register, look up, lose the master, query its history
	$(BIN)/python -m examples.demo.run

demo-rocketmq: install  ## Replace the three name servers of a real RocketMQ 5 broker and its clients (needs the native engine, Java 11 or later, and Maven)
	$(BIN)/python -m tests.rocketmq.demo

test: setup  ## Run the unit and integration tests; with TEST=path, one file, folder or test
ifdef TEST
	$(BIN)/pytest $(TEST)
else
	$(BIN)/pytest tests/integration tests/unit -m "not ($(REST))" $(SIX)
endif

test-rest: setup  ## Run what `make test` leaves out: Spark, fuzz, version skew, faults, other languages, RocketMQ
	$(BIN)/pytest tests/rocketmq tests/interop tests/faults -n 3 --dist loadgroup --no-loadscope-reorder
	$(BIN)/pytest tests/skew tests/integration tests/fuzz tests/unit -m "$(REST)" $(FOUR)

format: setup  ## Mend what ruff can mend by itself: findings and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: setup  ## Try new inputs: 20 times as many on every property, 20,000 on every parser and call, a million frames, and ten minutes of connections to the native engine (two hours)
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); echo "make fuzz SEED=$$seed"; \
	fuzz="env FUZZ_EXAMPLES=20000 $(BIN)/pytest -n 2 --hypothesis-profile=fuzz --hypothesis-seed=$$seed --timeout=3600"; \
	export FUZZ_SEED=$$seed; sh engine/fuzz.sh 600 && $$fuzz tests/unit -m hypothesis && $$fuzz tests/fuzz || \
		{ echo "To repeat it: make fuzz SEED=$$seed, or one test with $$fuzz TEST"; exit 1; }

lint: setup  ## Lint, format, types, import rules, wire contract, generated pages, prose; the native engine, where cargo is found
	@# mypy reads for a minute on one core, and the engine's tests are compiled on the other.
	@$(MAKE) --no-print-directory --keep-going --jobs 2 $(APART) BESIDE=1 lint-engine lint-python lint-prose

lint-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/uv lock --quiet --check --offline
	$(BIN)/buf lint protos
	$(BIN)/python .ci/check_breaking.py
	@for page in limits log_events metrics nsctl_options settings; do $(BIN)/python docs/tools/generate_$$page.py --check || exit 1; done

lint-engine:
	sh engine/lint.sh

lint-prose: setup
	$(BIN)/python docs/tools/lint_prose.py

docs: setup $(SITE_TOOLS)  ## Build the documentation site into build/site, with all links checked
	$(BIN)/python docs/tools/build_site.py

$(SITE_TOOLS): uv.lock
	$(BIN)/$(EXPORT) --only-group docs -o $(VENV)/docs.txt
	$(BIN)/$(HASHED) --quiet -r $(VENV)/docs.txt
	@touch $@

wheel:  ## Build the native engine's wheel into dist/, for any Linux since 2014 (cargo 1.85 or later, and pip)
	$(PYTHON) -m release.engine_wheel

images:  ## Build both container images, and the native engine's wheel for them
	$(PYTHON) -m release.images -- $(IMAGE_OPTIONS)

dist: setup  ## Build a release into dist/ (wheels, sdist, contract, clients, chart, SBOM, checksums), and run its wheels from empty environments
	$(BIN)/python -m release.distribution

lock:  ## Renew uv.lock from pyproject.toml, with the newest versions; and the version of uv that reads it
	echo uv | $(BIN)/uv pip compile --quiet --upgrade $(PUBLIC) --python-version 3.11 --generate-hashes --no-header --no-annotate - -o deploy/uv.txt
	$(BIN)/uv lock --upgrade $(PUBLIC)

clean:  ## Remove everything that was made here
	rm -rf $(VENV) gen dist build .bench .cache .coverage .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
