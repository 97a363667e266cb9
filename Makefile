# The two commands of a newcomer are `make try` and `make test`. Each installs what it needs.

# Machines and root file systems take root; `nodeside try` asks sudo itself, pytest does not.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo 'sudo --preserve-env env PATH="$$PATH" PYTHONDONTWRITEBYTECODE=1')

# On a cluster of yours, the parts of the story that need no power over its nodes: docs/lab.md.
STORY := $(if $(NODESIDE_LAB_KUBECONFIG),tests/lab/elsewhere.py,tests/lab/long_story.py tests/lab/long_claims.py tests/lab/long_programs.py tests/lab/long_neighbours.py --tour docs/tour.md)

ON_ONE_NODE := --every-chapter tests/lab/test_story.py tests/lab/test_dra.py tests/lab/test_stack.py

UNIT := not (vm or toolkit or cluster or registry or slow)

# Temporary files are in memory then (tests/conftest.py), so only those of the last failure are kept.
KEEP_FEW := --override-ini tmp_path_retention_count=1

# What else `make test` does only in part.
IN_FULL := --every-chapter -m 'long and not vm' tests/driver tests/cluster
PACKAGES := --every-chapter tests/vm/test_dkms_packages.py

.PHONY: help try test unit images control-plane lab lab-down lab-story chaos bench lint clean

help:
	@echo 'make try            boot a throwaway machine and try examples/edu in it'
	@echo 'make test           run all tests of every tier'
	@echo 'make unit           run what takes one to three minutes (ARGS="-k registry")'
	@echo 'make images         build the images for a cluster (ARGS="--push registry.example.com/nodeside")'
	@echo 'make control-plane  start a real Kubernetes control plane on loopback, until Ctrl-C'
	@echo 'make lab            start a real cluster: two nodes in QEMU with a device, until Ctrl-C'
	@echo 'make lab-down       end it from another shell'
	@echo 'make lab-story      tell what befalls a driver in it, for hours (ARGS="--outage 60 -k registry")'
	@echo 'make chaos          try to break it for hours, and say what broke (ARGS=--minutes=60: no longer)'
	@echo 'make bench          measure, and write docs/benchmarks.md (BENCH=quick: a subset, only shown)'
	@echo 'make lint           ruff, mypy, import contracts'
	@echo 'make clean          remove the caches of the throwaway machines and of the control plane'

try:
	@scripts/setup try
	@.venv/bin/nodeside try examples/edu $(ARGS)

test:
	@scripts/setup test
	@scripts/setup browser
	@$(AS_ROOT) .venv/bin/python -m pytest --all-tiers --numprocesses 2 --durations 10 $(ARGS)

# What Python compiles is kept, whatever the environment says: a third of the time, if it is not.
unit:
	@scripts/setup test
	@PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -m '$(UNIT)' --hypothesis-profile quick $(KEEP_FEW) $(ARGS)

images:
	@images/build all $(ARGS)

control-plane:
	@scripts/setup test
	@.venv/bin/python -m tests.controlplane $(ARGS)

lab:
	@scripts/setup test
	@$(AS_ROOT) .venv/bin/python -m tests.lab up $(ARGS)

lab-down:
	@$(AS_ROOT) .venv/bin/python -m tests.lab down

lab-story:
	@scripts/setup test
	@$(AS_ROOT) .venv/bin/python -m pytest $(STORY) $(ARGS)
	@$(if $(NODESIDE_LAB_KUBECONFIG),,$(AS_ROOT) .venv/bin/python -m pytest $(ON_ONE_NODE) $(ARGS))
	@$(if $(NODESIDE_LAB_KUBECONFIG)$(ARGS),,$(AS_ROOT) .venv/bin/python -m pytest $(IN_FULL))
	@$(if $(NODESIDE_LAB_KUBECONFIG)$(ARGS),,$(AS_ROOT) .venv/bin/python -m pytest $(PACKAGES))

chaos:
	@scripts/setup test
	@$(AS_ROOT) .venv/bin/python -m tests.chaos $(ARGS)

bench:
	@scripts/setup test
	@$(AS_ROOT) .venv/bin/python -m bench $(if $(filter quick,$(BENCH)),--quick) $(ARGS)

lint:
	@scripts/setup test
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

clean:
	@.venv/bin/nodeside try --clean-cache
	@.venv/bin/python -m tests.controlplane clean
