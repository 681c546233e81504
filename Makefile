# Every target makes its own environment; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# A folder outside the checkout, where only what is in the wheel can be found.
OUTSIDE := $(or $(TMPDIR),/tmp)/ucofia-wheel

.PHONY: demo setup test test-all test-cluster test-browser lint docs wheel demo-of-wheel bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $(READY)

setup: $(READY)
	$(BIN)/ucofia setup --yes

demo: setup
	$(BIN)/ucofia demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'

test-all: lint setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# A head and two nodes on this machine, of which some die; one test at a time.
test-cluster: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/cluster -n 0 -rs

# Takes a Chromium that is there; on Debian as root it installs one.
test-browser: $(READY)
	command -v chromium chromium-browser google-chrome || (apt-get update && apt-get install --yes chromium)
	$(PIP) playwright
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/serve/test_browser.py -rs

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(READY)
	rm -rf build/lib dist
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# The wheel alone, in an environment of its own and from another folder.
demo-of-wheel: wheel
	rm -rf $(OUTSIDE)
	$(PYTHON) -m venv $(OUTSIDE)
	$(OUTSIDE)/bin/pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[starter,serve]"
	cd $(OUTSIDE) && bin/ucofia --version && bin/ucofia setup --yes && bin/ucofia demo --json > demo.json

bench: $(READY)
	$(BIN)/python bench/score.py

clean:
	rm -rf $(VENV) build dist
