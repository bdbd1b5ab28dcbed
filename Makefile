# Everything that a developer types. `make` alone lists the targets.
# Needs make and a Python of 3.11 or newer; the rest is installed into $(VENV).

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN = $(VENV)/bin
LOGS ?=
STORE ?=
JOBS ?= 2
PYTEST_ARGS ?=
EXAMPLES ?= 3000
SEQUENCES ?= 1000
ROUNDS ?= 30
FRAMES ?= 1000000
OUTAGE_S ?= 600
WAL ?= object
FAULT ?= store-refuses
BENCH_ARGS ?=
FUZZ_ARGS ?=

# Tests start hundreds of Python processes: without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-spark tools test test-fast fuzz fuzz-kafka asan test-minio test-kafka test-prometheus test-remote-storage differential-kafka differential-kafka-transactions differential-kafka-cleaning differential-kafka-segments differential-kafka-tiering kill-kafka kill-kafka-transactions outage-kafka bench bench-kafka bench-kafka-page bench-spark bench-tiered dist lint lint-style lint-types lint-layers \
	lint-protos lint-generated proto kafka-messages proto-baseline docs format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- environment: one stamp for each set of packages, so that a second run costs nothing

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "no Python of 3.11 or newer was found: say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

NATIVE = setup.py $(wildcard streamlog/codec/native/* streamlog/runtime/native/*)

$(VENV)/.installed: $(VENV)/.created pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

# Both sets at once: each call of pip compiles anew. A rule of its own, so that CI installs
# once and `make lint` and `make test` find their stamps.
$(VENV)/.installed-all: $(VENV)/.created pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[lint,test]'
	@touch $(VENV)/.installed
	@touch $(VENV)/.installed-lint $(VENV)/.installed-test $@

setup: $(VENV)/.installed ## make the environment in .venv, nothing else

# ---- what a user comes for

demo: $(VENV)/.installed ## log lines in, kill -9, log lines out (LOGS=DIR: your own; STORE=s3: on an S3 server)
	@$(BIN)/streamlog demo $(if $(LOGS),--logs "$(LOGS)") $(if $(STORE),--store $(STORE))

demo-spark: $(VENV)/.installed-spark ## log lines through a streaming PySpark job (LOGS=DIR: your own); needs Java 17
	@$(BIN)/streamlog spark demo $(if $(LOGS),--logs "$(LOGS)")

# ---- tests

tools: $(VENV)/.installed-test ## build the S3 server and the gRPC tool that tests use (once, a minute or two)
	@$(BIN)/python -m tests.support.tools

test: tools ## run all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

test-fast: tools ## run the tests that are quick (3 minutes at most)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not slow' $(PYTEST_ARGS)

test-minio: export TEST_S3_SERVER = minio
test-minio: tools ## run the tests of the S3 store against MinIO (its first build takes 4 minutes)
	$(BIN)/python -m pytest -n 0 --timeout 900 tests/objectstore tests/faults/test_store_faults.py $(PYTEST_ARGS)

test-kafka: export TEST_KAFKA_CLIENTS = all
test-kafka: tools $(VENV)/.installed-kafka-clients ## drive a node with all of Kafka's clients and tools; needs Java 17, Maven and kcat
	@command -v kcat >/dev/null || { echo "kcat is not on the PATH: apt install kcat"; exit 1; }
	$(BIN)/python -m pytest -n 0 --timeout 600 tests/kafka_clients $(PYTEST_ARGS)

test-prometheus: tools ## hold alert rules and dashboard to a real Prometheus beside a node; needs prometheus and promtool
	@command -v promtool >/dev/null || { echo "promtool is not on the PATH: apt install prometheus"; exit 1; }
	TEST_PROMETHEUS=yes $(BIN)/python -m pytest -n 0 --timeout 300 tests/monitoring $(PYTEST_ARGS)

# gcsfs asks Google's gRPC interface what kind of bucket it is, and the emulator has none.
test-remote-storage: export TEST_REMOTE_STORAGE = yes
test-remote-storage: export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT = false
test-remote-storage: tools $(VENV)/.installed-remote-storage ## tier into HDFS, Azurite and a GCS emulator; needs Java 17, Maven and npm
	$(BIN)/python -m pytest -n 0 --timeout 300 tests/tiered/storage/services $(PYTEST_ARGS)

differential-kafka: tools ## make the same calls to a node and to a real Kafka (SEQUENCES=N, default 1000)
	$(BIN)/python -m tests.kafka_clients.differential --sequences $(SEQUENCES)

differential-kafka-transactions: tools ## the same transactions on a node and on a real Kafka (SEQUENCES=N, default 1000)
	$(BIN)/python -m tests.kafka_clients.differential.transactions --sequences $(SEQUENCES)

differential-kafka-cleaning: tools ## compact the same topics on a node and on a real Kafka (SEQUENCES=N, default 1000)
	$(BIN)/python -m tests.kafka_clients.differential.cleaning --sequences $(SEQUENCES)

differential-kafka-segments: tools ## compare segments and indexes of unified topics with a real Kafka's (SEQUENCES=N, default 1000)
	$(BIN)/python -m tests.kafka_clients.differential.segments --sequences $(SEQUENCES)

differential-kafka-tiering: tools ## tier the same topics on a node and on a real Kafka (SEQUENCES=N, default 1000)
	$(BIN)/python -m tests.kafka_clients.differential.tiering --sequences $(SEQUENCES)

kill-kafka: tools ## kill -9 a node under Kafka's idempotent producers, with both modes of the WAL (ROUNDS=N each, default 30; STORE=s3: on an S3 server)
	$(BIN)/python -m tests.kafka_clients.kills --rounds $(ROUNDS) $(if $(STORE),--store $(STORE))

kill-kafka-transactions: tools ## kill -9 a node and clients under transactions that copy topics, with both modes of the WAL (ROUNDS=N each, default 30; STORE=s3: on an S3 server)
	$(BIN)/python -m tests.kafka_clients.kills.transactions --rounds $(ROUNDS) $(if $(STORE),--store $(STORE))

outage-kafka: tools ## take store or metadata away under Kafka's clients (OUTAGE_S=600 WAL=disk FAULT=store-hangs)
	$(BIN)/python -m tests.kafka_clients.outages --seconds $(OUTAGE_S) --wal $(WAL) --fault $(FAULT)

# ---- lint: style, types, layers, protos, and that generated files are what the sources say

lint: lint-style lint-types lint-layers lint-protos lint-generated ## check style, types, layers, protos and generated files

lint-style: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(VENV)/.installed-lint $(VENV)/.installed-test
	$(BIN)/mypy

lint-layers: $(VENV)/.installed-lint
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	$(BIN)/python .ci/floor_plan.py

lint-protos: $(VENV)/.installed-lint
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.binpb

lint-generated: $(VENV)/.installed-lint
	$(BIN)/python proto/generate.py --check
	$(BIN)/python proto/kafka/generate.py --check
	$(BIN)/python -m streamlog.settings.document --check
	$(BIN)/python -m streamlog.cli.document --check

format: $(VENV)/.installed-lint ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.installed-lint ## generate streamlog/v1 from proto/
	$(BIN)/python proto/generate.py

kafka-messages: $(VENV)/.installed ## generate streamlog/kafka/messages and records from Kafka's definitions; needs Maven
	$(BIN)/python proto/kafka/generate.py

proto-baseline: $(VENV)/.installed-lint ## accept today's protos as what later changes may not break
	$(BIN)/buf build --as-file-descriptor-set --exclude-source-info -o proto/baseline.binpb

docs: $(VENV)/.installed ## generate docs/config.md, docs/topic-settings.md and docs/cli.md
	$(BIN)/python -m streamlog.settings.document
	$(BIN)/python -m streamlog.cli.document

# ---- figures and packages

fuzz: $(VENV)/.installed-test ## fuzz the byte parsers for long (EXAMPLES=N of each, default 3000)
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n $(JOBS) --timeout 3600 tests/fuzz

fuzz-kafka: $(VENV)/.installed-test ## give a node damaged requests of Kafka's clients (FRAMES=N, default 1000000; JOBS nodes at once)
	$(BIN)/python -m tests.fuzz.frames --frames $(FRAMES) --jobs $(JOBS) $(FUZZ_ARGS)

ASAN_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1
ASAN_TESTS ?= tests/codec tests/fuzz/test_differential.py tests/fuzz/test_corpus.py tests/client/produce/test_producer.py \
	tests/wal/test_durable_writes.py tests/runtime/test_writer_threads.py tests/unified/test_appends_by_threads.py

asan: $(VENV)/.installed-test ## run the tests of what is compiled under the address and undefined behaviour sanitizers
	rm -rf .cache/asan
	mkdir -p .cache/asan
	cp -R streamlog kvstore server tests setup.py pyproject.toml README.md LICENSE .cache/asan
	rm -f .cache/asan/streamlog/codec/*.so .cache/asan/streamlog/runtime/*.so
	cd .cache/asan && CFLAGS="$(ASAN_FLAGS)" LDFLAGS="$(ASAN_FLAGS)" $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd .cache/asan && STREAMLOG_CODEC=native PYTHONMALLOC=malloc LD_PRELOAD="$$(cc -print-file-name=libasan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(abspath $(BIN))/python -m pytest -q -n 0 -p no:cacheprovider --timeout 1800 $(ASAN_TESTS)

bench: $(VENV)/.installed-test ## run the benchmarks: a table, and JSON in bench-results/
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-kafka: $(VENV)/.installed-test ## run the benchmarks of Kafka's protocol beside a bare server, gRPC and Kafka; needs Java 17 and, once, Maven
	$(BIN)/python -m benchmarks.kafka $(BENCH_ARGS)

bench-kafka-page: $(VENV)/.installed-test ## put the figures of the last bench-kafka into docs/benchmarks.md
	$(BIN)/python -m benchmarks.page bench-results/kafka.json --into docs/benchmarks.md --under "### Kafka's protocol, recorded"

bench-spark: $(VENV)/.installed-test ## run the Spark benchmarks beside Kafka and Parquet; needs Java 17 and, once, Maven
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

bench-tiered: $(VENV)/.installed-test ## run the benchmarks of tiered storage on an S3 server, beside raw PUTs and GETs
	$(BIN)/python -m benchmarks tiered --json bench-results/tiered.json $(BENCH_ARGS)

dist: $(VENV)/.installed-dist ## build wheel and sdist into dist/
	rm -rf dist build
	$(BIN)/python -m build

clean: ## remove what was built and cached (the environment stays)
	rm -rf .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
