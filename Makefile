# Everything runs from a bare checkout with Python 3.11 or newer: each target first makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
STAMP := $(VENV)/.stamp

FOR ?= 3.12
NAMES ?= msgspec z3-solver
PLATFORMS := manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64

export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_REQUIRE_VIRTUALENV := 1
export NO_MKDOCS_2_WARNING := 1
# Without it each of the many processes of the tests compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format docs docs-serve pages tutorials methods notebooks schedules reproduction bench bench-half bench-verify bench-plan bench-overlap bench-memory bench-train mutants code-mutants attack faults gpu wheels wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "primepar needs Python 3.11 or newer, and '$(PYTHON)' is not: make PYTHON=python3.13" >&2; exit 2; }
	@echo "Installing into $(VENV) what constraints.txt pins. This takes a minute or more, once." >&2
	@test -f $(VENV)/pyvenv.cfg && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --build-constraint constraints.txt \
	    --editable '.[torch,plot,text]' --group dev --group docs
	@touch $@

demo: $(STAMP) ## prove, refute, emulate and train one primitive
	$(BIN)/python tutorials/00_demo.py

test: $(STAMP) ## lint, the site built strictly, and all tests
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint docs
	@command -v chromium chromium-browser >/dev/null || echo "No Chromium here: tests/pictures/test_page_browser.py is skipped" >&2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers 3

test-long: $(STAMP) ## every case of every test: before a release, takes hours
	HYPOTHESIS_PROFILE=ci OMP_NUM_THREADS=1 $(BIN)/python -m pytest --workers 3

lint: $(STAMP) ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: pages ## make the pages of tutorials, methods and cases, build the site into site/
	$(BIN)/mkdocs build --strict
	$(BIN)/python tests/helpers/site_crawl.py site

docs-serve: pages ## the site at http://127.0.0.1:8000, rebuilt at every change
	$(BIN)/mkdocs serve

pages: tutorials methods schedules

tutorials: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python docs/render_tutorials.py

methods: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python docs/render_methods.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/render_cases.py

notebooks: $(STAMP) ## the tutorials as Jupyter notebooks, with outputs and pictures: out/notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.render_notebooks

schedules: $(STAMP)
	$(BIN)/python docs/vendor_prover.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/render_page.py

reproduction: $(STAMP) ## the paper's evaluation next to ours: docs/reproduction.md and its pictures
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.render_reproduction

bench: $(STAMP) ## bytes of every method by the emulator, then its executor next to DTensor
	$(BIN)/python -m benchmarks family_bytes
	$(BIN)/python -m benchmarks executor --batch --rounds 6 --out out/bench.json
	@echo "python -m docs.render_performance out/bench.json makes docs/performance.md of it"

bench-half: $(STAMP) ## the error of bfloat16 sums that travel, and training in half precision next to float32
	$(BIN)/python -m benchmarks half_precision
	$(BIN)/python -m benchmarks mixed_precision

bench-verify: $(STAMP) ## seconds of the proofs, next to a plain encoding in Z3
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks verify

bench-plan: $(STAMP) ## seconds of the planner's search next to the paper's, and published training runs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks plan
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks published_runs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks published_ranks
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks regret
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks planner_answers

bench-overlap: $(STAMP) ## what chunks of transfers save in a simulated step
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks overlap

bench-memory: $(STAMP) ## a step under limits of device memory, and in less memory: peak, bytes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks device_memory
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks training_memory

bench-train: $(STAMP) ## predicted next to measured training steps
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks predicted_and_measured --out out/ranking.json
	@echo "python -m docs.render_ranking out/ranking.json makes docs/planner-ranking.md of it"

mutants: $(STAMP) ## wrong programs and primitives: how many are caught, how many right ones refused
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/attack.py mutants programs

code-mutants: $(STAMP) ## one token of the product changed at a time: which test sees it (ONLY='--rooms verify --count 6')
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/code_mutants.py $(ONLY)

attack: $(STAMP) ## generated primitives against an independent oracle, random triples, altered certificates
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/attack.py maps certificates program-certificates
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/search_attack.py

faults: $(STAMP) ## a training run broken in 100 ways: one line, and it goes on bit for bit (ONLY=--long: one of minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/faults.py $(ONLY)

gpu: ## the tests that need a GPU, with the torch of PYTHON and without a registry; on CPUs: ON=--cpu
	@$(PYTHON) tests/helpers/gpu_suite.py $(ON)

wheels: ## packages for make gpu where there is no registry: make wheels FOR=3.12 NAMES='msgspec z3-solver'
	PIP_REQUIRE_VIRTUALENV=0 $(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --dest wheels \
	    --constraint constraints.txt --python-version $(FOR) $(PLATFORMS:%=--platform %) $(NAMES)

wheel: $(STAMP) ## build the sdist and, from it, the wheel into dist/
	$(BIN)/python -m build

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist site out wheels .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
