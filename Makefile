# Everything a developer does with this repository; `make help` lists it.
PYTHON ?= python3
TOOLS := $(CURDIR)/.tools
export PATH := $(CURDIR)/.venv/bin:$(TOOLS)/uv/bin:$(PATH)

LOCAL := python -m autopilot.local
PYTEST := python -m pytest -q
# Two workers: the suites share one Postgres, and two cores are what every machine has.
PARALLEL := -n 2
# The tests of a module share one stack, and wait more than they work.
BY_MODULE := $(PARALLEL) --dist loadfile
SOURCES := shared/src services/*/src deploy/local/src
CODE := $(SOURCES) tests deploy/bootstrap.py deploy/docker

# Programs that a part of the tests needs, too large or too rare for everybody's setup: for the chart, for alerts and metrics, before
# Postgres. They stand up here because make reads a target's needs where it stands.
KUBERNETES := .tools/kubernetes/pin.txt
PROMTOOL := .tools/promtool/promtool
PGBOUNCER := .tools/pgbouncer/pgbouncer

.DEFAULT_GOAL := help
.PHONY: help setup senders demo up start stop status format lint types imports unit integration contract system faults \
	check test bench lock schema charts helm-test image clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install uv in .tools and every package in .venv (quick when nothing changed)
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on this machine: install Python 3.11 or newer, or set PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) deploy/bootstrap.py

SENDERS := tests/senders/node_modules/.package-lock.json

senders: $(SENDERS) ## Install the client libraries of webhook senders that are npm packages, for tests

$(SENDERS): tests/senders/package.json tests/senders/package-lock.json | setup
	@echo "Installing the senders of webhooks in tests/senders"
	@python tests/senders/install.py
	@touch $@

demo: setup ## Run the main job on real input, from webhook to finished task, and show its timeline
	@$(LOCAL) demo

up: setup ## Run the whole stack in the foreground until Ctrl-C
	@$(LOCAL) up

start: setup ## Run the whole stack in the background
	@$(LOCAL) start

stop: setup ## Stop the stack in the background
	@$(LOCAL) stop

status: setup ## Tell what of the stack runs
	@$(LOCAL) status

format: setup ## Format the code and sort imports
	ruff check --fix-only --quiet $(CODE)
	ruff format $(CODE)

lint: setup ## Check format and lint rules
	ruff format --check $(CODE)
	ruff check $(CODE)

types: setup ## Check types with mypy --strict and pyright
	mypy $(SOURCES) tests deploy/bootstrap.py deploy/docker/image.py
	pyright

imports: setup ## Check the layers between packages
	lint-imports

unit: setup ## Tests without input or output
	$(PYTEST) $(PARALLEL) tests/unit

integration: setup ## Tests on real Postgres and NATS
	$(PYTEST) $(PARALLEL) tests/integration

contract: setup senders ## Each port's suite on each of its implementations
	$(PYTEST) $(PARALLEL) tests/contract

system: setup $(PGBOUNCER) ## Tests of the four services as processes
	$(PYTEST) $(BY_MODULE) tests/system

faults: setup ## Tests that kill, cut off and restart
	$(PYTEST) $(BY_MODULE) tests/faults

$(KUBERNETES): tests/deploy/kubernetes-tools.txt tests/deploy/install.py | setup
	@python tests/deploy/install.py

# Where one of them cannot be had, its tests are skipped.
$(PROMTOOL) $(PGBOUNCER): | setup
	@python tests/deploy/install_debian.py $(notdir $@)

helm-test: setup $(KUBERNETES) $(PROMTOOL) ## Tests of what is deployed: chart, kustomize, containers, alerts, dashboard
	$(PYTEST) $(BY_MODULE) tests/deploy

image: setup $(KUBERNETES) ## Build the images of the services with buildah, podman or docker, and run them as in production
	@python deploy/docker/image.py
	$(PYTEST) -n0 -s tests/deploy/test_image.py

check: lint types imports unit integration ## What to run before each commit

test: check contract helm-test system faults ## Everything, also from a bare clone

bench: setup ## Print figures, measured side by side with what they are compared to
	python -m tests.bench

lock: setup ## Pin all dependencies anew in requirements.lock
	uv lock
	uv export --quiet --all-packages --all-groups --no-emit-workspace --no-header --no-annotate --format requirements-txt -o requirements.lock

schema: setup ## Write storage/schema.sql from the migrations
	python -m autopilot.local.schema

charts: setup $(KUBERNETES) ## Write what the chart and the kustomize base take from elsewhere
	python -m tests.support.chart_files

clean: ## Remove everything that is made here, the stack's data included
	@if [ -x .venv/bin/python ]; then $(LOCAL) destroy; fi
	rm -rf .venv .tools tests/senders/node_modules .local .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
