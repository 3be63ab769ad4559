# make lab    set up, train the lab's runs, print what they say
# make test   set up, run the tests (minutes)
# make test-slow   real servers, kills, whole sweeps
# make bench  cost of recording and tracking, one JSON line a figure

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: lab test test-slow bench lint

lab: $(STAMP)
	$(BIN)/autopsy lab

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -m "not slow"

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

bench: $(STAMP)
	$(BIN)/python -m tests.bench

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python: expected 3.11 or newer, found " + sys.version.split()[0])'
	@echo "setting up $(VENV): about 2 GB of packages, a minute or a few"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $(STAMP)
