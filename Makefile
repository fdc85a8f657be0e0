# millstream: `make help` lists the targets. Those that need it run `setup` first.

VENV   ?= .venv
PYTHON ?=
ARGS   ?=

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JARS      := $(VENV)/.jars

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long test-fast lint typecheck fmt bench lock clean

help: ## Show this list
	@echo "Usage: make <target> [ARGS=\"...\"]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(JARS) ## Build .venv from requirements.lock and download Delta's jars; does nothing if nothing changed

demo: setup ## Run the demonstrations: tables in PostgreSQL that keep themselves fresh; a lake, incremental against full
	@$(BIN)/millstream demo --postgres
	@$(BIN)/millstream demo $(ARGS)

test: setup lint typecheck ## Lint, type check and run all tests except the long ones (ARGS: options of pytest)
	@$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: setup ## Run the tests that take more than half a minute each
	@$(BIN)/python -m pytest -m long -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: setup ## Run the tests that need no JVM and no PostgreSQL
	@$(BIN)/python -m pytest -m "not spark and not postgres and not long" -n 2 $(ARGS)

lint: setup ## Check style, format, layers and module sizes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make fmt'" >&2; exit 1; }
	@$(BIN)/lint-imports --no-logo --no-cache
	@find src -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 800 { print $$2 ": " $$1 " lines; split it (800 at most)"; bad = 1 } END { exit bad }'

typecheck: setup ## Run mypy, strict on the package
	@$(BIN)/mypy

fmt: setup ## Format the code and sort the imports
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format .

bench: setup ## Run the benchmarks; results go to docs/benchmarks (ARGS: options of `millstream bench`)
	@$(BIN)/millstream bench $(ARGS)
	@$(BIN)/millstream bench --tpch $(ARGS)
	@$(BIN)/millstream bench --postgres $(ARGS)
	@$(BIN)/millstream bench --daemon $(ARGS)

lock: ## Regenerate requirements.lock from pyproject.toml (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: install it (e.g. with pip) and run again." >&2; exit 1; }
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --quiet \
		--no-header --no-emit-index-url --no-emit-find-links $(ARGS) --output-file requirements.lock
	@! grep -n '://' requirements.lock || { echo "requirements.lock contains a URL; see the lines above." >&2; exit 1; }

clean: ## Remove .venv and everything else that was built
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each check fails with one sentence, before anything is downloaded.
define CHECK_JAVA
java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1); \
if [ "$${version:-0}" -lt 17 ]; then \
	echo "Spark needs Java 17 or newer, but '$$java' is $${version:+version }$${version:-not available}: install one" \
		"(on Debian or Ubuntu the package openjdk-17-jre-headless or newer) or set JAVA_HOME to one." >&2; \
	exit 1; \
fi
endef

define FIND_PYTHON
python=; \
for candidate in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14); do \
	if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then \
		python=$$candidate; break; \
	fi; \
done; \
if [ -z "$$python" ]; then \
	echo "millstream needs Python 3.11 to 3.14 with its venv module: install one (on Debian or Ubuntu the packages" \
		"python3 and python3-venv) or choose one with 'make PYTHON=/path/to/python'." >&2; \
	exit 1; \
fi
endef

$(INSTALLED): requirements.lock pyproject.toml
	@$(CHECK_JAVA)
	@$(FIND_PYTHON); \
	if ! $(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then \
		echo "Creating $(VENV) with $$("$$python" --version) ..."; \
		"$$python" -m venv --clear $(VENV); \
	fi
	@echo "Installing the packages in requirements.lock (600 MB the first time, most of it Spark; takes some minutes) ..."
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --progress-bar off \
		--require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
		--no-deps --no-build-isolation --editable .
	@touch $@

$(JARS): $(INSTALLED) src/millstream/engine/jars.py
	@echo "Looking for Delta's jars ..."
	@$(BIN)/python -m millstream.engine.jars
	@touch $@
