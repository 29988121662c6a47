# Each target does its own set-up into .venv, once: `make study` and `make test` are all it takes.
PYTHON ?= python3
VENV ?= .venv
# Versions to install: those of a file, and single ones besides.
CONSTRAINTS ?= constraints.txt
PINS ?=
BIN := $(VENV)/bin
# What a study needs (63 packages, 1.6 GB with torch for processors), and what all else needs besides.
INSTALLED := $(VENV)/.study
READY := $(VENV)/.ready
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) $(PINS) -e
AXE := build/axe/node_modules/axe-core/axe.min.js

.PHONY: study test test-oldest-torch test-newest prove gpu browser hostile paper golden check format docs pictures wheel clean
.DEFAULT_GOAL := study

study: $(INSTALLED)  ## run the study
	$(BIN)/unmask study

test: $(READY)  ## every law, parity and end-to-end test, at small size
	@# Compiled files are kept, whatever the environment says: each worker and command needs them.
	@# Each worker has half of the files, in one piece: what a file's tests share is made once.
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations 12

test-oldest-torch:  ## the same, with the oldest torch that is allowed
	$(MAKE) test VENV=build/oldest-torch CONSTRAINTS=/dev/null PINS='torch==2.11.*'

test-newest:  ## the same, with the newest version of every package
	$(MAKE) test VENV=build/newest CONSTRAINTS=/dev/null

prove: $(READY) $(AXE)  ## the long proofs: fresh clone, wheel, browser, anything over a minute
	$(BIN)/python -m pytest -q -m prove

gpu: $(READY)  ## every test that needs a CUDA device
	$(BIN)/python -m pytest -q -m gpu

browser: $(READY) $(AXE)  ## of the long proofs, the study's page and the explorer in chromium
	$(BIN)/python -m pytest -q -m prove tests/report/test_browser.py tests/explorer/test_browser_*.py

hostile: $(READY)  ## hostile inputs, the whole fuzz, two kills of every verb that writes, and what beside.txt names
	$(BIN)/python -m pytest -q -m 'prove or not prove' tests/hostile @tests/hostile/beside.txt

paper: $(READY)  ## every page of results, on one GPU; DATA=FOLDER, and STAGE=NAME or MINUTES=8 for a piece, ON=local:4 side by side
	$(BIN)/python paper/run.py $(if $(DATA),--data $(DATA)) $(if $(STAGE),--stage $(STAGE)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(ON),--on $(ON))

golden: $(READY)  ## write the golden losses of the training loop anew; review the difference
	$(BIN)/python -m tests.training.golden

check: $(READY)  ## format, lint, types, layers, file sizes, words, workflow
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ty check
	$(BIN)/python tools/check_layers.py
	$(BIN)/yamllint --strict .github .pre-commit-config.yaml

format: $(READY)  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## the documentation site in build/docs, with HTML pages of kept results; a broken link or anchor is an error
	$(BIN)/python tools/write_formats.py
	$(BIN)/python tools/write_verbs.py
	$(BIN)/python paper/draw_html.py
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs

pictures: $(READY)  ## README's animation, the explorer's screenshots and the notebook, drawn anew: about four minutes
	$(BIN)/python tools/draw_pictures.py

wheel: $(READY)  ## build the wheel into dist/
	$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Unmask needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[study]'
	@touch $@

$(READY): $(INSTALLED)
	$(INSTALL) '.[dev]'
	@touch $@

$(AXE):  ## judges the page's accessibility; without npm its proof fails and says so
	-npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix build/axe axe-core@4.14.0

clean:
	rm -rf .venv dist build .pytest_cache .ruff_cache
