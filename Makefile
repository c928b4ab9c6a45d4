# `make book` and `make test` set up what they need and do their job; both can be run again at any time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONHASHSEED := 0
export HF_HUB_DISABLE_TELEMETRY := 1
# MPLBACKEND=agg would silently drop every figure from the notebooks.
unexport MPLBACKEND

# The small honest grid of the main job: 3 designs x 3 shapes, the same tokens for each.
GRID := pocket --designs pre_ln hc full_attnres --n-layers 2 4 8 --seeds 0 --lr 5e-3 --tokens-per-param 4
WORKERS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)

.PHONY: help book test setup data grid chapters notebooks html check unit nbval pages picture clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: $(STAMP)  ## make the virtual environment

$(STAMP): requirements.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "depthbench needs Python 3.11; found $$($(PYTHON) --version). Say where it is: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade "pip>=24"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	$(BIN)/python -m pip check
	touch $@

book:  ## the main job: set up, prepare text, train a small grid, execute the chapters, render
	@echo "make book on 2 cores: set-up about 3 min and 2 GB of disk (once), text half a minute and 21 MB of downloads (once),"
	@echo "training 5 to 10 min (once), chapters and pages 1 min. A second 'make book' trains nothing."
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory data
	@$(MAKE) --no-print-directory grid
	@$(MAKE) --no-print-directory chapters
	@$(MAKE) --no-print-directory html
	@echo "Open _build/html/index.html"

data: $(STAMP)  ## prepare the text
	$(BIN)/python -m depthbench.data prepare packages-512

grid: $(STAMP)  ## train the small grid, or what is missing of it
	$(BIN)/python -m launch run $(GRID) --workers $(WORKERS)

chapters: $(STAMP)  ## execute the chapters
	$(BIN)/python -m launch chapters

notebooks: $(STAMP)  ## write build/notebooks/*.ipynb
	$(BIN)/python -m launch notebooks

html: $(STAMP)  ## render the book
	$(BIN)/jupyter-book build . -W -n --keep-going -q
	@test -s _build/html/index.html

test: setup  ## set up, then every test
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory data
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory chapters
	@$(MAKE) --no-print-directory nbval
	@$(MAKE) --no-print-directory html
	@$(MAKE) --no-print-directory pages

check: $(STAMP)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(STAMP)  ## unit tests
	$(BIN)/python -m pytest --ignore tests/book

nbval: $(STAMP)  ## a second execution of every chapter must print the same
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout 600 --nbval-sanitize-with tests/nbval.cfg -p no:timeout build/chapters

pages: $(STAMP)  ## the rendered pages, in files and in a browser
	$(BIN)/python -m pytest tests/book

picture: $(STAMP)  ## draw the README's picture from the published numbers and the rows in results/
	$(BIN)/python -m launch picture

clean:  ## remove what was rendered and executed; data, runs and the environment stay
	rm -rf _build build/chapters build/jupyter_cache
