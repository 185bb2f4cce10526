# Everything a fresh machine needs is Python 3.11+ and make. `make run` and `make test` set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PORT ?= 7777

.PHONY: run test check bench bench-peers accept chaos growth cancels lock format clean help

help:
	@echo "make run      set up, make the tables, serve the demo agent on port $(PORT)"
	@echo "make test     set up and run the whole suite"
	@echo "make check    lint, types, layers, migrations"
	@echo "make bench    measure this server beside a bare FastAPI route and, after make bench-peers, AgentOS"
	@echo "make accept KIT=<folder>   run the acceptance kit in a folder against the scripted agents"
	@echo "make chaos    faults at random moments under load: RUNS=$(RUNS) runs on STORE=$(STORE) (or sqlite)"
	@echo "make cancels  how long a cancel takes from one server to what another executes"
	@echo "make growth   what a claim and a run cost as the store grows"
	@echo "make lock     resolve the dependencies anew"

run: $(VENV)/.run
	$(BIN)/waystation migrate
	exec $(BIN)/waystation serve --port $(PORT)

test: $(VENV)/.dev
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.check_migrations

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run

# The peer that is measured beside this server, in a venv of its own.
bench-peers:
	$(PYTHON) -m venv .venvs/agentos
	.venvs/agentos/bin/python -m pip install --quiet "agno[os]==3.1.3" aiosqlite greenlet openai uvloop httptools "psycopg[binary]"

accept: $(VENV)/.dev
	$(BIN)/python -m tests.support.accept_kit $(KIT)

RUNS ?= 10000
STORE ?= postgresql
cancels: $(VENV)/.dev
	$(BIN)/python -m benchmarks.cancels

growth: $(VENV)/.dev
	$(BIN)/python -m benchmarks.growth

chaos: $(VENV)/.dev
	$(BIN)/python -m tests.support.chaos --runs $(RUNS) --store $(STORE)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The locks hold versions and hashes, no addresses.
LOCK := --quiet --strip-extras --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --allow-unsafe
lock: $(VENV)/.venv
	$(PIP) install "pip-tools>=7.5"
	$(BIN)/pip-compile $(LOCK) -o requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK) --extra claude -c requirements.lock -o requirements-dev.lock pyproject.toml requirements-dev.in

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Waystation needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.venv requirements.lock pyproject.toml
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.venv requirements-dev.lock pyproject.toml
	$(PIP) install --require-hashes -r requirements-dev.lock
	$(PIP) install --no-deps --editable .
	@touch $@ $(VENV)/.run
