# make demo: create .venv, install regard into it, translate with the model that ships and train another.
# make test: the same environment with the tools for tests, then every check.
# make docs: the documentation as a site in build/site, which a browser opens without a server.
# make page: build the page from web/ into the package (needs Node and npm).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports, a small part of what is installed: pip need not compile all of it.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Tests start hundreds of small processes: what Python has compiled once is kept for the next.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test lint bench docs page tools chromium clean

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed-dev
	@$(MAKE) --no-print-directory -j 3 lint tools chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/attention.py

docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/site
	@echo "Open build/site/index.html in a browser."

page: web/node_modules/installed
	cd web && npm run --silent check && npm run --silent build

# What the page is built with, where there is npm. Without it the page that is in the package is used as it is.
tools:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory web/node_modules/installed; \
	else echo "There is no npm here, so the page is not built again."; fi

# A browser for the tests of the page: found, or installed where that is possible. Without one they are skipped.
chromium: $(VENV)/installed-dev
	@$(BIN)/python scripts/chromium.py

clean:
	rm -rf $(VENV) web/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[fast]'
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[docs]'
	@touch $@

web/node_modules/installed: web/package.json web/package-lock.json
	cd web && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@
