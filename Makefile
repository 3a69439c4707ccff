# Two commands: `make train` trains a team, `make test` tests the project. Each sets up everything that it needs.
PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(wildcard protos/marless/rpc/v1/*.proto)
JOB ?= examples/spread.yaml
# Seeds that `make faults` simulates, some hours of CPU; `make faults SIMULATED=1000` takes two minutes for them.
SIMULATED ?= 100000
# Tests often wait: four processes are quickest on two cores.
TEST_PROCESSES ?= 4
QUICK := not slow and not gpu and not containers and not ray and not cloud and not browser
# In suites that are for one tool, a test that would be skipped fails, and says what is missing.
WHOLE := --nothing-skipped
# Tests of the sources themselves, which `make check` runs.
CHECKED := tests/test_architecture.py tests/test_names.py
BENCH_PEERS := $(if $(PEERS),--peers $(PEERS))
BENCH_DOCKER := $(if $(DOCKER),--docker $(DOCKER))
PIP := -m pip install --quiet --disable-pip-version-check
# What is installed is what requirements/ names, file by file; no package is built on the way.
LOCKED := $(PIP) --require-hashes --no-deps --only-binary :all:
TOOLS := .venv/security/bin
PROMTOOL ?= promtool

# Tests start hundreds of Python processes, which start faster from bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-slow test-gpu test-hosts test-slurm test-containers test-ray test-cloud test-browser test-metrics test-kubernetes manifests faults security fuzz check format protos lock audit sbom release docs results
.PHONY: bench bench-algorithms bench-environments bench-peers clean

train: .venv/.train
	$(BIN)/marless train $(JOB)

# Files are shared out among processes; then come, one by one, the tests that measure time or load the whole machine.
test: export OMP_NUM_THREADS := 1
test: .venv/.dev
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "$(QUICK) and not alone" $(CHECKED:%=--ignore=%)
	$(BIN)/python -m pytest -m "$(QUICK) and alone" $$(grep -rl --include='*.py' 'mark\.alone' tests)

test-slow: .venv/.dev .venv/.sinks .venv/.docs
	$(BIN)/python -m pytest -m slow

# On the first GPU; `MARLESS_TEST_DEVICE=cpu make test-gpu` tries the tests themselves on a machine without one.
test-gpu: .venv/.dev
	OMP_NUM_THREADS=1 CUBLAS_WORKSPACE_CONFIG=:4096:8 $(BIN)/python -m pytest -m gpu tests/gpu -rs

# A job over four hosts, which are network namespaces: their links are cut for up to 30 s. Needs root and `ip`.
test-hosts: .venv/.dev
	$(BIN)/python -m pytest -m slow $(WHOLE) tests/hosts

# Workers that a Slurm job array starts. Needs root, and `apt-get install --no-install-recommends slurm-wlm munge`.
test-slurm: .venv/.dev
	$(BIN)/python -m pytest -m slow $(WHOLE) tests/slurm

# Builds the images of deploy/ and kills their containers; needs a container engine (DOCKER_HOST) and docker-compose.
# MARLESS_PYTHON names another base image.
test-containers: .venv/.dev
	$(BIN)/python -m pytest -m containers $(WHOLE) tests/containers tests/plugins/docker

# Starts clusters of Ray on this machine, of up to three nodes, and kills some.
test-ray: .venv/.ray
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray $(WHOLE) tests/plugins/ray

# Against moto, a stand-in for AWS that it starts on this machine; nothing is ordered anywhere. Needs Terraform and its provider for AWS
# (TF_CLI_ARGS_init=-plugin-dir=DIR where no registry answers), the AWS CLI, and podman with the image that MARLESS_PYTHON names.
test-cloud: .venv/.cloud .venv/.localstack
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cloud $(WHOLE) tests/cloud tests/plugins/ec2

# The dashboard's pages in Chromium. Needs it, as from `apt-get install --no-install-recommends chromium`; CHROMIUM names another one.
test-browser: .venv/.browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser $(WHOLE) tests/browser

# The rules of deploy/prometheus and the queries of deploy/grafana, by Prometheus's own promtool. Needs it, as from
# `apt-get install --no-install-recommends prometheus`; PROMTOOL names another one.
test-metrics: .venv/.dev
	@command -v $(PROMTOOL) >/dev/null || { echo "promtool is missing: apt-get install --no-install-recommends prometheus"; exit 1; }
	$(PROMTOOL) check rules deploy/prometheus/alerts.yaml
	$(PROMTOOL) test rules tests/metrics/alerts.yaml
	@mkdir -p .pytest_cache && $(BIN)/python -m tests.queries > .pytest_cache/queries.yaml
	$(PROMTOOL) check rules .pytest_cache/queries.yaml
	$(BIN)/python -m pytest tests/unit/rpc/test_queries.py tests/integration/test_metrics.py

# The chart of deploy/helm/ as Helm's engine renders it, the manifests of deploy/kubernetes/ and the launcher's Pods against the schemas of
# Kubernetes; needs no cluster.
test-kubernetes: .venv/.dev .venv/.kubernetes
	$(BIN)/python -m tests.plugins.kubernetes | .venv/kubernetes/bin/python -m tests.kubernetes_schemas -

# Writes deploy/kubernetes/marless.yaml anew after a change of the chart.
manifests: .venv/.kubernetes
	.venv/kubernetes/bin/python -m tests.kubernetes_schemas --write

# What deciding is worth: bench/plans/decisions.md. Some hours on two cores; can be stopped and started again.
results: .venv/.dev
	$(BIN)/python -m bench.frontiers --runs runs --seeds 5 --processes 2 --json runs/frontiers.json
	$(BIN)/python -m bench.noise_law --runs-folder runs --json runs/noise_law.json
	$(BIN)/python -m bench.idle_shares --runs-folder runs --json runs/idle_shares.json
	$(BIN)/python -m bench.schedule_pairs --runs-folder runs --json runs/schedule_pairs.json
	$(BIN)/python -m bench.agreement --json runs/agreement.json
	$(BIN)/python -m bench.learned_schedulers --runs runs --seeds 3 --json runs/learned_schedulers.json
	$(BIN)/python -m bench.exact_curvature --runs runs --seeds 5 --json runs/exact_curvature.json
	$(BIN)/python -m bench.report $(addprefix runs/,$(addsuffix .json,frontiers noise_law idle_shares schedule_pairs agreement learned_schedulers exact_curvature))

# Kills, pauses, cuts and fills everything at full size (about 50 minutes on 2 cores), writes the table of tests/faults/RESULTS.md,
# and then simulates the whole system under faults.
faults: .venv/.dev
	$(BIN)/python -m tests.faults --document tests/faults/RESULTS.md
	$(BIN)/python -m tests.simulation --seeds 0:$(SIMULATED)

# Every attack of tests/security at full size.
security: .venv/.dev .venv/.security
	$(BIN)/python -m pytest tests/security -m "slow or not slow"

# Ten million structured inputs for everything that reads what others send or leave; prints what replays a finding.
fuzz: .venv/.fuzz
	$(BIN)/python -m tests.fuzz

# Format, lint, types, fresh protos, architecture; everything but the tests.
check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/python -m protos.check
	$(BIN)/python -m pytest $(CHECKED)

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: .venv/.dev
	$(BIN)/python -m protos.generate .

# Writes requirements/*.txt anew after a change of pyproject.toml; `make lock UPGRADE=1` takes newer versions.
lock: .venv/.security
	$(TOOLS)/python -m requirements.lock $(if $(UPGRADE),--upgrade)
	$(TOOLS)/python -m requirements.platforms

# Known vulnerabilities of everything that is locked; requirements/waivers.toml has those that are borne, and why.
audit: .venv/.security
	$(TOOLS)/python -m requirements.audit

# Builds dist/ and checks it, installs the wheel in an empty environment of each Python (`make release PYTHONS="python3.12 python3.13"`)
# and trains there. For a commit that has the tag of its version, dist/ is then signed, and the command that a person gives to publish it printed.
release: .venv/.dev .venv/.release
	$(BIN)/python -m tests.release $(foreach each,$(PYTHONS),--python $(each))

# The software bill of materials (CycloneDX) of what runs jobs: dist/marless.cdx.json.
sbom: .venv/.security
	@mkdir -p dist
	cat requirements/train.txt requirements/torch.txt | $(TOOLS)/cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible --validate -o dist/marless.cdx.json -

# The site of docs/, into site/; a link that leads nowhere fails. `.venv/docs/bin/mkdocs serve` shows it while you write.
# Its theme, mkdocs-material, is maintained until May 2027, as it says without the variable.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict --quiet

# Prints the tables of docs/benchmarks.md and docs/benchmarks_services.md for this machine, and keeps them in bench/results; `make bench-peers` and then
# `make bench PEERS=rllib,benchmarl,jaxmarl` measures peers beside us. `make bench DOCKER=network=host,user=1000` also starts workers in containers.
bench: .venv/.dev
	$(BIN)/python -m bench.param_store --json bench/results/param_store.json
	$(BIN)/python -m bench.cold_start $(BENCH_DOCKER) --json bench/results/cold_start.json
	$(BIN)/python -m bench.jobs --json bench/results/jobs.json
	$(BIN)/python -m bench.fresh_worker --json bench/results/fresh_worker.json
	$(BIN)/python -m bench.recovery --json bench/results/recovery.json
	$(BIN)/python -m bench.round_overhead --json bench/results/round_overhead.json
	$(BIN)/python -m bench.decisions --json bench/results/decisions.json
	$(BIN)/python -m bench.updates --json bench/results/updates.json
	$(BIN)/python -m bench.round_cpu --json bench/results/round_cpu.json
	$(BIN)/python -m bench.throughput $(BENCH_PEERS) --json bench/results/throughput.json
	$(BIN)/python -m bench.time_to_return $(BENCH_PEERS) --json bench/results/time_to_return.json

# Every algorithm in three games: with own, equal and the best settings, and what an off-policy round costs beside torch. Hours with PEERS.
bench-algorithms: RUNS_KEPT := --run-file bench/results/algorithm_runs.jsonl
bench-algorithms: .venv/.dev
	$(BIN)/python -m bench.algorithms $(BENCH_PEERS) $(RUNS_KEPT) --json bench/results/algorithms_spread.json
	$(BIN)/python -m bench.algorithms --settings equal $(BENCH_PEERS) $(RUNS_KEPT) --json bench/results/algorithms_equal.json
	$(BIN)/python -m bench.algorithms --settings best $(BENCH_PEERS) $(RUNS_KEPT) --json bench/results/algorithms_best.json
	$(BIN)/python -m bench.algorithms --game cartpoles --settings equal $(BENCH_PEERS) $(RUNS_KEPT) --json bench/results/algorithms_carts.json
	$(BIN)/python -m bench.algorithms --game adversary $(BENCH_PEERS) $(RUNS_KEPT) --json bench/results/algorithms_adversary.json
	$(BIN)/python -m bench.off_policy_step --json bench/results/off_policy_step.json

# Trains for a minute in every environment of PettingZoo and mpe2, half an hour in all; goes on where it was interrupted.
bench-environments: .venv/.dev
	$(BIN)/python -m bench.environments --json bench/results/environments.json

bench-peers: .venv/.dev
	$(BIN)/python -m bench.peers.install rllib benchmarl jaxmarl

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "marless needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

.venv/.train: pyproject.toml requirements/train.txt requirements/torch.txt requirements/torch-cpu.txt | .venv/bin/python
	@echo "installing marless and what it needs into .venv, most of it torch: 1.3 GB, or 5.3 GB where only torch's build with CUDA is known; two to six minutes"
	@$(BIN)/python $(LOCKED) -r requirements/torch-cpu.txt 2>/dev/null || { \
		echo "no CPU build of torch is known for this Python and machine, or pip's index has none: installing PyPI's build (on Linux 5 GB, with CUDA)"; \
		$(BIN)/python $(LOCKED) -r requirements/torch.txt; }
	$(BIN)/python $(LOCKED) -r requirements/train.txt
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.train
	$(BIN)/python $(LOCKED) -r requirements/dev.txt
	@touch $@

.venv/.cloud: requirements/cloud.txt .venv/.dev
	$(BIN)/python $(LOCKED) -r requirements/cloud.txt
	@touch $@

.venv/.localstack: requirements/localstack.txt | .venv/bin/python
	$(BIN)/python -m venv .venv/localstack
	.venv/localstack/bin/python $(LOCKED) -r requirements/localstack.txt
	@touch $@

.venv/.sinks: requirements/sinks.txt .venv/.cloud
	$(BIN)/python $(LOCKED) -r requirements/sinks.txt
	@touch $@

.venv/.ray: requirements/ray.txt .venv/.sinks
	$(BIN)/python $(LOCKED) -r requirements/ray.txt
	@touch $@

.venv/.browser: requirements/browser.txt .venv/.dev
	@command -v $${CHROMIUM:-chromium} >/dev/null || { echo "Chromium is missing: apt-get install --no-install-recommends chromium"; exit 1; }
	$(BIN)/python $(LOCKED) -r requirements/browser.txt
	@touch $@

.venv/.fuzz: requirements/fuzz.txt .venv/.dev
	$(BIN)/python $(LOCKED) -r requirements/fuzz.txt
	@touch $@

.venv/.security: requirements/security.txt | .venv/bin/python
	$(BIN)/python -m venv .venv/security
	$(TOOLS)/python $(LOCKED) -r requirements/security.txt
	@touch $@

.venv/.docs: requirements/docs.txt | .venv/bin/python
	$(BIN)/python -m venv .venv/docs
	.venv/docs/bin/python $(LOCKED) -r requirements/docs.txt
	@touch $@

.venv/.release: requirements/release.txt | .venv/bin/python
	$(BIN)/python -m venv .venv/release
	.venv/release/bin/python $(LOCKED) -r requirements/release.txt
	@touch $@

.venv/.kubernetes: requirements/kubernetes.txt | .venv/bin/python
	$(BIN)/python -m venv .venv/kubernetes
	.venv/kubernetes/bin/python $(LOCKED) -r requirements/kubernetes.txt
	@touch $@
