# Everything happens in .venv* and vlalign_data; nothing else of the system is touched.

PYTHON ?= python3
# pinned: what constraints.txt says. lowest: the lowest that pyproject.toml allows. newest: whatever came out last.
VERSIONS ?= pinned
HOW_pinned := --require-hashes --require-build-hashes --constraint constraints.txt --build-constraint constraints.txt
SELF_pinned := --require-build-hashes --build-constraint constraints.txt
HOW_lowest := --resolution lowest-direct
HOW_newest := --upgrade
# A Python that is named has an environment of its own, such as .venv-3.13; so has each other choice of versions.
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))$(patsubst %,-%,$(filter-out pinned,$(VERSIONS)))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
ROOT ?= vlalign_data
RUN := words-resnet152+s3d-seed0
AT := --root $(ROOT) --dataset demo

# Most tests start processes. Each would compile all that it imports where the environment forbids keeping what was compiled.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all test-matrix fast-tests portable-tests default-table coverage check style types docs constraints audit dist image release-check release-notes clean

demo: $(INSTALLED)
	$(BIN)/vlalign-preprocess $(AT)
	$(BIN)/vlalign-extract $(AT) --features resnet152,s3d
	$(BIN)/vlalign-train $(AT) --features resnet152+s3d
	@$(MAKE) --no-print-directory $(ROOT)/demo/search.txt
	$(BIN)/vlalign-evaluate $(AT) $(RUN)
	@echo 'page:    open the address that $(BIN)/vlalign-serve $(AT) $(RUN) prints'

$(ROOT)/demo/search.txt: $(ROOT)/demo/runs/$(RUN)/run.json Makefile
	$(BIN)/vlalign-search $(AT) $(RUN) "a blue cross grows" --by video > $@
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

# A selection for other machines: decoding, stores, captions, a training step, a search and the command line.
portable-tests: $(INSTALLED)
	$(PYTEST) -m "portable and not slow"

# The fast tests on each Python of this machine. All run, whichever fails; MATRIX=portable-tests is shorter.
MATRIX := fast-tests
test-matrix:
	@failed=; for python in $$(.ci/pythons); do \
		echo "== $$python: $(MATRIX)"; $(MAKE) --no-print-directory PYTHON=$$python $(MATRIX) || failed="$$failed $$python"; \
	done; test -z "$$failed" || { echo "failed with:$$failed"; exit 1; }

# The default recipe beside strong models, on six made sets: an hour on two cores. ENCODER=FOLDER also with its sentence vectors.
default-table: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/default_table.py vlalign_data/made $(if $(ENCODER),--text-encoder $(abspath $(ENCODER)))

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
	$(BIN)/codespell *.md docs extract preprocess ray_jobs storage train tests/*.py tests/benchmarks/README.md .ci/*.py
	$(BIN)/python .ci/audit.py

types: $(INSTALLED)
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# The site of the documentation, strict: a warning or a link that leads nowhere ends it.
docs: $(INSTALLED)
	$(BIN)/sphinx-build -c docs -b html -q -W --keep-going . docs/_build/html
	@echo 'page:    docs/_build/html/README.html'

# Editors and type checkers find vlalign.* through links, since the folders lie at the top level (see [tool.basedpyright]).
# uv installs what constraints.txt pins, and refuses a package that it does not name and a file whose hash is not there.
# vlalign itself has no hash, so it comes last and alone. Made again when either file changes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'vlalign needs Python 3.10 or newer: make PYTHON=python3.12 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(VENV)/uv.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet $(HOW_$(VERSIONS)) --requirement pyproject.toml --extra english --extra dev
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps $(SELF_$(VERSIONS)) --editable .
	mkdir -p .editor/vlalign
	for folder in extract preprocess ray_jobs storage train; do ln -sfn ../../$$folder .editor/vlalign/$$folder; done
	touch $@

# The pinned versions and their files' hashes: for every supported Python and platform, without naming an index. It adds what is missing;
# UPGRADE=--upgrade moves them all.
constraints: $(INSTALLED)
	$(BIN)/uv pip compile --universal --python-version 3.10 --all-extras --no-annotate --no-header --generate-hashes --quiet $(UPGRADE) pyproject.toml -o constraints.txt
	$(MAKE) --no-print-directory audit

# Asks the package index about known vulnerabilities of the pins; make check holds them against what it said, on any machine.
audit: $(INSTALLED)
	$(BIN)/python .ci/audit.py --refresh

# sdist, wheel and their checksums, of the last commit: the same bytes each time. For these four see docs/releasing.md.
dist: $(INSTALLED)
	$(BIN)/python .ci/release.py dist dist

image:
	docker build --file ray_jobs/Dockerfile --tag vlalign .

# Whether the last commit is ready for a release. TAG=v1.1.0 also compares the tag with the version.
release-check:
	@$(PYTHON) .ci/release.py check $(TAG)

release-notes:
	@$(PYTHON) .ci/release.py notes

clean:
	rm -rf dist .venv .venv-* .editor vlalign_data docs/_build docs/reference
