# Everything happens in .venv and vlalign_data; nothing else of the system is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
ROOT ?= vlalign_data
RUN := words-resnet152+s3d-seed0
AT := --root $(ROOT) --dataset demo

# Most tests start processes. Each would compile all that it imports where the environment forbids keeping what was compiled.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all fast-tests coverage check style types docs constraints audit clean

demo: $(INSTALLED)
	$(BIN)/vlalign-preprocess $(AT)
	$(BIN)/vlalign-extract $(AT) --features resnet152,s3d
	$(BIN)/vlalign-train $(AT) --features resnet152+s3d
	@$(MAKE) --no-print-directory $(ROOT)/demo/search.txt
	$(BIN)/vlalign-evaluate $(AT) $(RUN)
	@echo 'page:    http://127.0.0.1:8377/ after $(BIN)/vlalign-serve $(AT) $(RUN)'

$(ROOT)/demo/search.txt: $(ROOT)/demo/runs/$(RUN)/run.json Makefile
	$(BIN)/vlalign-search $(AT) $(RUN) "a blue cross grows" --by picture > $@
	@cat $@

# A process for each core, each with one thread: processes share the cores better than threads. One more, since some tests wait.
PROCESSES := $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 8
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

# The types, which take a minute of one core, are checked beside the tests.
test: style
	@$(MAKE) --no-print-directory --jobs=2 types fast-tests

test-all: check
	$(PYTEST)

fast-tests: $(INSTALLED)
	$(PYTEST) -m "not slow"

# What share of the lines the fast tests run, those of the processes that they start included.
coverage: $(INSTALLED)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest --numprocesses $(PROCESSES) --dist worksteal -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort cover

check: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/audit.py

types: $(INSTALLED)
	$(BIN)/basedpyright

# The site of the documentation, strict: a warning or a link that leads nowhere ends it.
docs: $(INSTALLED)
	$(BIN)/sphinx-build -c docs -b html -q -W --keep-going . docs/_build/html
	@echo 'page:    docs/_build/html/README.html'

# Editors and type checkers find vlalign.* through links, since the folders lie at the top level (see [tool.basedpyright]).
# uv installs what constraints.txt pins, and refuses a file whose hash is not there; made again when either file changes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'vlalign needs Python 3.10 or newer: make PYTHON=python3.12 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(VENV)/uv.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable ".[english,dev]"
	mkdir -p $(VENV)/editor/vlalign
	for folder in extract preprocess ray_jobs storage train; do ln -sfn ../../../$$folder $(VENV)/editor/vlalign/$$folder; done
	touch $@

# The pinned versions and their files' hashes: for every supported Python and platform, without naming an index. It adds what is missing;
# UPGRADE=--upgrade moves them all.
constraints: $(INSTALLED)
	$(BIN)/uv pip compile --universal --python-version 3.10 --all-extras --no-annotate --no-header --generate-hashes --quiet $(UPGRADE) pyproject.toml -o constraints.txt
	$(MAKE) --no-print-directory audit

# Asks the package index about known vulnerabilities of the pins; make check holds them against what it said, on any machine.
audit: $(INSTALLED)
	$(BIN)/python .ci/audit.py --refresh

clean:
	rm -rf $(VENV) vlalign_data docs/_build docs/reference
