# Every target makes .venv first, where it is missing or out of date: Python 3.11 or newer is all
# that has to be there.  make PYTHON=/path/to/python3.12 chooses the interpreter.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than there are processors, for tests wait for programs; at most five, for each collects all.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; expr $$n + 1)
PYTEST_ARGS ?=
ROOM ?=
# All extras but vision, speech and all, which names the others (docs/dependencies.md).
LOCKED := mlx pytest pdf telemetry web gateway anthropic ollama mcp openapi keychain postgres dev
# The lowest Python that pyproject.toml allows, by version or path, and tests that use every extra.
LOWEST ?= 3.11
LOWEST_TESTS := app backends controller decoding kb mcp notes policy prompt protocol schedule schema store transcript \
  tools/test_mcp_client.py tools/test_openapi.py tools/test_web_search.py tools/test_tool.py \
  gateway/test_chat_completions.py gateway/test_responses.py runs/test_runs.py
QUESTION ?= What is 17 * 23?

# Tests start the command some hundred times: compiled anew each time, it takes twice as long.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-heavy test-slow test-slowed test-hard test-lowest check format docs site lock clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Make .venv (the other targets do it by themselves)

demo: $(READY) ## Ask a real model on a real server a question that needs a tool
	$(BIN)/mlx-tools models pull smollm2-135m
	$(BIN)/mlx-tools ask --steps --backend server --model smollm2-135m "$(QUESTION)"

test: $(READY) ## The default tests: all but the heavy and the slow ones; ROOM=policy: those of a room
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) $(ROOM:%=tests/%)

test-heavy: $(READY) ## The tests with Chromium, PostgreSQL and models that compute
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "heavy and not slow" $(PYTEST_ARGS)

test-slow: $(READY) ## The slow tests, and the properties with new examples
	$(BIN)/pytest -n $(WORKERS) -m "slow or hypothesis" --hypothesis-profile explore $(PYTEST_ARGS)

test-slowed: $(READY) ## The default and heavy tests, with pauses before commands, prompts and waits
	TESTS_OF_MLX_TOOLS_SLOWED=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not slow and not check" $(PYTEST_ARGS)

test-hard: $(READY) ## The default tests, as strangers run them: an hour
	bash scripts/test_hard.sh $(HARD)

test-lowest: $(READY) ## Light tests with the lowest Python and versions that pyproject.toml names
	$(BIN)/uv venv --quiet --seed --clear --python $(LOWEST) $(VENV)-lowest
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest --resolution lowest-direct \
	  $(LOCKED:%=--extra %) --requirement pyproject.toml
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest --no-deps --no-build-isolation --editable .
	$(VENV)-lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not slow and not real" $(PYTEST_ARGS) $(LOWEST_TESTS:%=tests/%)

check: $(READY) ## Lint, format, types, import order, repository hygiene
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/pytest -m "" tests/test_architecture.py tests/test_hygiene.py tests/test_lock.py tests/test_names.py \
	  tests/test_portable.py tests/test_public_api.py tests/test_waiting.py

format: $(READY) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write what is generated, in docs/ and for completion
	$(BIN)/python scripts/import_diagram.py
	$(BIN)/python scripts/settings_table.py
	$(BIN)/python scripts/commands_table.py
	$(BIN)/python scripts/clients_table.py
	$(BIN)/python scripts/agents_table.py
	$(BIN)/python scripts/training_table.py
	$(BIN)/python scripts/comparison_table.py
	$(BIN)/python scripts/mcp_table.py
	$(BIN)/python scripts/models_table.py
	$(BIN)/python scripts/scaling_table.py
	$(BIN)/python scripts/work_table.py
	$(BIN)/python scripts/damage_table.py
	$(BIN)/python scripts/gateway_figures.py
	$(BIN)/python scripts/chat_screens.py
	$(BIN)/python scripts/completion_table.py
	$(BIN)/python scripts/counts.py

site: $(READY) ## The documentation as a site in build/site, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --config-file scripts/site/mkdocs.yml

lock: $(READY) ## Renew requirements.lock (LOCK_ARGS=--upgrade takes the newest versions)
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 $(LOCKED:%=--extra %) \
	  --custom-compile-command "make lock" --quiet $(LOCK_ARGS) --output-file requirements.lock

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) $(VENV)-lowest .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A tree that was copied or moved along with its .venv would run the code of the place it came from.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif
$(READY): requirements.lock pyproject.toml scripts/setup.sh
	sh scripts/setup.sh
