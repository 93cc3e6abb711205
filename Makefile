# Every target sets up .venv if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY_TO_RUN := $(VENV)/.ready-to-run
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests run in parallel on all cores, each process on one thread.
TEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test check format docs bench pictures results clean

# One thread: with images this small a second one does not help, and is slow on a busy machine.
demo: $(READY_TO_RUN)
	OMP_NUM_THREADS=1 $(BIN)/python examples/demo.py

test: $(READY)
	$(TEST)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	rm -rf build/packages
	$(BIN)/python -m build --no-isolation --outdir build/packages >/dev/null
	$(BIN)/python -m twine check --strict build/packages/*

# Builds the site in build/site, then runs every code block, link and notebook of the pages.
docs: $(READY)
	$(BIN)/python -m tools.website
	$(TEST) tests/docs

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

pictures: $(READY) demo
	$(BIN)/python -m tools.pictures

results: $(READY)
	$(BIN)/python -m tools.results

clean:
	rm -rf $(VENV) build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and exactly as pinned: a range would install builds for other hardware.
$(READY_TO_RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(INSTALL) -e '.[lab,report]'
	touch $@

$(READY): $(READY_TO_RUN) requirements-dev.txt requirements-docs.txt
	$(INSTALL) -r requirements-dev.txt -r requirements-docs.txt -e '.[all]'
	touch $@
