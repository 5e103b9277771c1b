# `make demo` and `make test` do all their own set-up on a fresh machine; the rest is for daily work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
BENCHMARKS := client_cost false_alarms detection recovery control_plane checkpoint_engine checkpoint_restore checkpoint_s3

.PHONY: setup format check test demo soak bench gpu

setup: $(READY)

$(READY): pyproject.toml requirements/torch.txt requirements/dev.txt
	@sh requirements/system.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements/torch.txt -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet -e '.[plot]'
	@touch $(READY)

format: $(READY)  ## rewrite the code in the project's form
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

check: $(READY)  ## linters and unit tests, under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not system and not soak" -n $(WORKERS)

test: $(READY)  ## everything that has to pass, real processes too
	$(BIN)/pytest -m "not soak" -n $(WORKERS) --dist loadfile

demo: $(READY)  ## train, break it four times, and see what became of it
	$(BIN)/python examples/demo.py

soak: $(READY)  ## long repetitions
	$(BIN)/pytest -m soak

bench: $(READY)  ## measure the claims of the README anew, on a quiet machine; about an hour
	@missed=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python -m benchmarks.$$name || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "missed or broken:$$missed"; exit 1; }

gpu: $(READY)  ## check snapshots on a GPU, and what they cost; without one it says so and fails
	$(BIN)/python -m benchmarks.gpu_checkpoint
