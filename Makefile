# Falaj. `make` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TAGS    := duckdb_arrow
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
BUILT   := $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.built=$(BUILT)
export GOFLAGS   := -tags=$(TAGS) -buildvcs=false -trimpath
export GOTOOLCHAIN := local

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## fetch uv and the ONNX Runtime library, by digest
	@scripts/deps.sh

.PHONY: console
console: ## build the web console, when its sources changed; needs Node
	@scripts/console.sh

.PHONY: build
build: deps console ## build bin/falaj and bin/falaj-worker
	@echo "  · building (the first time takes some minutes)"
	@go build -ldflags "$(LDFLAGS)" -o bin/falaj ./cmd/falaj
	@CGO_ENABLED=0 go build -ldflags "$(LDFLAGS)" -o bin/falaj-worker ./cmd/falaj-worker

.PHONY: build-arm64
build-arm64: console ## build bin/arm64/ for 64-bit ARM, such as a gateway's machine; needs Debian's cross compiler
	@LDFLAGS="$(LDFLAGS)" scripts/arm64.sh

.PHONY: release
release: ## build what is published into dist/, from a commit without changes; KEY=file signs, ARCHES="amd64"
	@VERSION=$(VERSION) LDFLAGS="$(LDFLAGS)" scripts/release.sh

.PHONY: demo
demo: build ## run the main job on real data; EXIT=1 stops the server at the end
	@scripts/demo-data.sh
	@EXIT=$(EXIT) examples/nycflights/run.sh

.PHONY: engines
engines: deps ## install the real engines and clients that `make test` runs against
	@scripts/engines.sh

.PHONY: engines-all
engines-all: deps ## also Spark and a Kubernetes, built from source, of `make test-engines`
	@scripts/engines.sh all

.PHONY: test
test: build lint ## lint, architecture, unit, conformance, engines and scripts
	@scripts/test.sh

.PHONY: check
check: .tmp/bin/golangci-lint ## build, vet, lint and test one area, as fast as can be; PKG=./internal/feature/...
	@[ -n "$(PKG)" ] || { echo "Which area? make check PKG=./internal/feature/..." >&2; exit 1; }
	@go build $(PKG)
	@.tmp/bin/golangci-lint run $(PKG)
	@go test -short -vet=off -shuffle=on $(PKG)

.PHONY: test-short
test-short: ## unit tests only, without the race detector
	@go test -short ./...

.PHONY: test-engines
test-engines: build ## the suites on real engines, one at a time
	@scripts/test-engines.sh -- -v

.PHONY: test-upgrade
test-upgrade: FROM ?= $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null)
test-upgrade: build ## fill a server of the previous release, upgrade it, and compare all answers and the schema; FROM=revision
	@[ -n "$(FROM)" ] || { echo "There is no earlier release. From which revision? make test-upgrade FROM=REVISION" >&2; exit 1; }
	@go test ./test/upgrade -count=1 -timeout 30m -v -args -from=$(FROM)

.PHONY: test-crash
test-crash: build ## kill the server 200 times under random writes; KILLS=n, SEED=n
	@go test ./test/crash -count=1 -timeout 2h -v -args -kills=$(or $(KILLS),200) -seed=$(or $(SEED),0)

.PHONY: test-stream
test-stream: build ## kill the server 100 times under events that are pushed and read from Kafka and NATS; KILLS=n, SEED=n
	@go test ./test/stream -count=1 -timeout 2h -v -args -kills=$(or $(KILLS),100) -seed=$(or $(SEED),0)

.PHONY: test-ingest
test-ingest: build ## kill the server 100 times under ingestions from sources that are written to; KILLS=n, SEED=n
	@go test ./test/ingest -count=1 -timeout 2h -v -args -kills=$(or $(KILLS),100) -seed=$(or $(SEED),0)

.PHONY: test-chaos
test-chaos: ENGINES ?= local,slurm,kube,ray
test-chaos: build ## kill workers, servers and nodes under jobs on four engines; KILLS=n, SEED=n, ENGINES=local,slurm,kube,ray
	@go test ./test/engines/chaos -count=1 -timeout 2h -v -args -kills=$(or $(KILLS),50) -seed=$(or $(SEED),0) -engines=$(ENGINES)

.PHONY: soak
soak: HOURS ?= 8
soak: build ## run a mixed load for hours, and write what grows to .tmp/soak.md; HOURS=n
	@mkdir -p .tmp
	@go test ./test/soak -run NothingGrows -count=1 -timeout $$(( $(HOURS) + 1 ))h -v -args -for=$(HOURS)h -table=$(CURDIR)/.tmp/soak.md

.PHONY: lint
lint: export GOFLAGS := -tags=$(TAGS) -buildvcs=false # with -trimpath cgo's cached output names the directory that filled the cache
lint: .tmp/bin/golangci-lint ## gofmt, vet and golangci-lint
	@.tmp/bin/golangci-lint run

.tmp/bin/golangci-lint: tools/lint/go.sum
	@echo "  · building golangci-lint (once)"
	@cd tools/lint && GOFLAGS=-buildvcs=false go build -o ../../.tmp/bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: generate
generate: ## write api/openapi.json and the generated pages of docs/
	@go run ./cmd/falaj child openapi >api/openapi.json.new
	@mv api/openapi.json.new api/openapi.json
	@go test ./internal/governance/policy ./internal/cli -run 'PermissionsDocument|Reference' -count=1 -rewrite
	@go test ./test/docs -run Config -count=1 -rewrite

.PHONY: bench-foundation
bench-foundation: build ## measure what bench/results/foundation.json holds
	@go run ./bench/foundation

.PHONY: bench-monitoring
bench-monitoring: build ## measure what bench/results/monitoring.json holds
	@scripts/demo-data.sh
	@go run ./bench/monitoring

.PHONY: bench-training
bench-training: build ## measure what bench/results/training.json holds; ITERATIONS=n rounds
	@go run ./bench/training $(if $(ITERATIONS),-rounds $(ITERATIONS))

.PHONY: bench-features
bench-features: ## measure what bench/results/features.json holds
	@go run ./bench/features

.PHONY: bench-serving
bench-serving: build ## measure what bench/results/serving.json holds; ITERATIONS=n rounds
	@go run ./bench/serving $(if $(ITERATIONS),-rounds $(ITERATIONS))

.PHONY: bench-safety
bench-safety: build ## measure what bench/results/safety.json holds; ITERATIONS=n rounds
	@go run ./bench/safety $(if $(ITERATIONS),-rounds $(ITERATIONS))

.PHONY: bench-tuning
bench-tuning: build ## measure what bench/results/tuning.json holds; ITERATIONS=n rounds of latency
	@go run ./bench/tuning $(if $(ITERATIONS),-rounds $(ITERATIONS))

.PHONY: bench-tracking
bench-tracking: build ## measure what bench/results/tracking.json holds; ROUNDS=n rounds
	@go run ./bench/tracking $(if $(ROUNDS),-rounds $(ROUNDS))

.PHONY: bench-scheduler
bench-scheduler: ## measure what bench/results/scheduler.json holds
	@go run ./bench/scheduler

.PHONY: proof-dcp
proof-dcp: ## prove that sharded checkpoints are loaded by other numbers of ranks; fetches 670 MB once
	@scripts/engines/dcp.sh
	@go test -tags "duckdb_arrow proof" -count=1 -v ./test/engines/dcp

.PHONY: proof-gpu
proof-gpu: build ## prove on a real GPU what is simulated elsewhere; says so where there is none
	@go test -tags "duckdb_arrow proof" -count=1 -v ./test/proof/gpu

.PHONY: proof-tensorflow
proof-tensorflow: build ## prove that two workers of TensorFlow train one model; fetches 300 MB each time
	@go test -tags "duckdb_arrow proof" -count=1 -v ./test/proof/tensorflow

.PHONY: clean
clean: ## remove what was built; caches of packages stay
	@rm -rf bin
