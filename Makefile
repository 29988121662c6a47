# Each target does its own set-up into .venv, once: `make study` and `make test` are all it takes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
AXE := build/axe/node_modules/axe-core/axe.min.js

.PHONY: study test prove browser golden check format wheel clean
.DEFAULT_GOAL := study

study: $(READY)  ## run the study
	$(BIN)/unmask study

test: $(READY)  ## every law, parity and end-to-end test, at small size
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

prove: $(READY) $(AXE)  ## the long proofs: fresh clone, wheel, browser, anything over a minute
	$(BIN)/python -m pytest -q -m prove

browser: $(READY)  ## of the long proofs, the study's page in chromium
	$(BIN)/python -m pytest -q -m prove tests/report/test_browser.py

golden: $(READY)  ## write the golden losses of the training loop anew; review the difference
	$(BIN)/python -m tests.training.golden

check: $(READY)  ## format, lint, types, layers, file sizes, words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ty check
	$(BIN)/python tools/check_layers.py

format: $(READY)  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(READY)  ## build the wheel into dist/
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Unmask needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

$(AXE):  ## judges the page's accessibility; without npm its proof fails and says so
	-npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix build/axe axe-core@4.14.0

clean:
	rm -rf .venv dist build .pytest_cache .ruff_cache
