# The commands of this repository. `make` alone lists them.
.DEFAULT_GOAL := help
RECIPE ?= rehearsal
KEEP ?=
RUN ?=
SEEDS ?= 0,1,2
KILLS ?= 40
SEED ?= 0
BIN := .venv/bin
TRAIN_BIN := .venv-train/bin
HEAVY := emulator or ray or skyrl or vllm or slow
WHOLE := tests/rehearsal tests/skyrl
DRILLS := tests/drills
# A PYTHONDONTWRITEBYTECODE from outside would make every process compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install rehearse sweep drill warm-start stop test test-whole test-parts test-drills test-fast lint synth clean
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: .venv/.complete .venv-train/.complete node_modules/.complete ## Make both environments and the cdk CLI

.venv/.complete .venv-train/.complete: scripts/environment.sh pyproject.toml $(wildcard requirements/*.lock)
	@scripts/environment.sh $(@D)

node_modules/.complete: package.json package-lock.json
	@command -v npm > /dev/null || { echo "error: npm is missing\n  -> install Node.js 20 or newer" >&2; exit 3; }
	npm ci --silent --no-audit --no-fund
	@touch $@

rehearse: install ## The whole job on this machine (RECIPE=smoke for the short one, KEEP=1 leaves it up)
	@$(BIN)/skypod rehearse --recipe $(RECIPE) $(if $(KEEP),--keep) $(if $(RUN),--run $(RUN))

sweep: install ## The recipe under several seeds, one after another (SEEDS=0,1,2); run again to go on
	@$(BIN)/skypod sweep $(RECIPE) --seeds $(SEEDS)

drill: install ## Runs under faults against one without (KILLS=40 SEED=0), an hour and a half; run again to go on
	@$(BIN)/skypod drill --kills $(KILLS) --seed $(SEED)

warm-start: install ## Make the tiny base policy of the rehearsal anew
	@$(BIN)/python -m rehearsal.warm

stop: ## End a rehearsal that is running or was kept up
	@$(BIN)/python -m rehearsal.stop

test-fast: .venv/.complete node_modules/.complete ## Everything that starts no emulator, Ray, SkyRL, vLLM or other servers
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not ($(HEAVY))"

test: install ## All tests, those of whole rehearsals and trainings beside those of single parts, then drills alone
	@$(MAKE) --no-print-directory -j2 test-whole test-parts
	@$(MAKE) --no-print-directory test-drills

test-whole:
	$(BIN)/python -m pytest -q --durations=15 -m "$(HEAVY)" $(WHOLE)

test-parts:
	$(TRAIN_BIN)/python -m pytest -q tests/tiny tests/cpu tests/gym
	$(MAKE) --no-print-directory test-fast
	$(BIN)/python -m pytest -q --durations=15 -m "$(HEAVY)" $(addprefix --ignore=,$(WHOLE) $(DRILLS))

# Alone: a run that is killed again and again on a busy machine says little of how long it takes to recover.
test-drills:
	$(BIN)/python -m pytest -q --durations=3 -m "$(HEAVY)" $(DRILLS)

lint: .venv/.complete ## Style, imports and likely faults
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

synth: .venv/.complete node_modules/.complete ## The CloudFormation templates of every stack, in cdk.out
	node_modules/.bin/cdk synth --quiet --all

clean: ## Remove environments, caches, run folders and synthesized templates
	@scripts/require_idle.sh
	rm -rf .venv .venv-train node_modules cdk.out .rehearsal runs build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
