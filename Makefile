# Tandem's verbs. Each one first puts in place what it needs (scripts/setup), so that a fresh clone
# needs no step of its own; `make` alone lists them. Nothing here keeps state outside `target/`,
# except the test VM's kernel, a Debian 12, the lab's kernels and saved machines, and mdBook, which are cached under ~/.cache/tandem.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),target)
TANDEM := $(TARGET)/release/tandem

# Arguments for demo and the benches, for instance: make demo ARGS='--seconds 5 --mix 4,2,1'
ARGS ?=
# Debian kernel series that the test VM boots: 6.1 is the last with CFS, 6.12 has EEVDF
KERNELS ?= 6.1 6.12

.PHONY: help
help: ## list the verbs
	@printf 'Tandem: fair vCPU scheduling for KVM hosts. The verbs:\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nArguments for demo and the benches go in ARGS, as in: make demo ARGS="--seconds 5"\n'

.PHONY: setup
setup: ## install the Debian packages that are missing (as root; otherwise say which)
	@scripts/setup

.PHONY: build
build: ## release build of the tandem binary
	@scripts/setup build
	cargo build --release --package tandem-cli

.PHONY: wheel
wheel: ## the Python wheel tandem-sched, under target/wheels (make test installs and tests one)
	@scripts/setup build
	@scripts/setup wheel
	@scripts/wheel

.PHONY: deb
deb: build ## the Debian package, under target/deb: program, units, manual, completions, dashboard and rules (make test installs and purges one)
	@scripts/setup deb
	@scripts/deb

.PHONY: demo
demo: build ## boot microVMs on this host, show what sharing it costs them, and what Tandem changes
	$(TANDEM) demo $(ARGS)

.PHONY: test
test: ## everything: formatting, lints, docs, tests, and the tests in the cgroup v2 VM
	@KERNELS='$(KERNELS)' scripts/test

.PHONY: test-vm
test-vm: ## only the tests in a VM whose kernel has cgroup v2 (QEMU; one kernel: KERNELS=6.1)
	@scripts/setup
	@KERNELS='$(KERNELS)' scripts/test-vm/run

.PHONY: bench
bench: build ## what things cost: the simulator's events, the daemon at 1,000 vCPUs, 200 VM starts and stops
	$(TANDEM) sim bench
	$(TANDEM) sim bench bench-scale --vary vm.vm.count=4,16,64,256
	$(TANDEM) bench overhead
	$(TANDEM) bench churn

.PHONY: bench-fairness
bench-fairness: build ## the acceptance suite of fairness: every mix, three runs (35 minutes and more)
	$(TANDEM) bench fairness $(ARGS)

.PHONY: bench-work
bench-work: build ## work relative to alone: every workload beside others, stock, by hand and Tandem (3 and a half hours; ARGS='--runs 1')
	$(TANDEM) bench work $(ARGS)

.PHONY: bench-guest
bench-guest: build ## programs in this VM: stock, the guest agent, settings by hand (ARGS='--seconds 2': 36 minutes)
	@scripts/setup bench
	$(TANDEM) bench guest --variants agent,taskset,haltpoll \
		--json $(TARGET)/bench-guest.json --html $(TARGET)/bench-guest.html $(ARGS)

.PHONY: lab
lab: build ## the lab from nothing to tables (ARGS=full: every experiment, hours; ARGS=programs: Debian's in Linux VMs; or ARGS='apples wake')
	@scripts/setup lab
	@lab/experiments/all $(ARGS)

.PHONY: lab-smoke
lab-smoke: build ## whether the lab works: a small kernel with the series, in QEMU, and one short run in Bochs
	@scripts/setup lab
	@lab/smoke

.PHONY: fmt
fmt: ## format the code
	cargo fmt --all

.PHONY: check
check: ## the quick part of test: house rules, formatting, lints
	@scripts/setup build
	@scripts/setup check
	@scripts/check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: docs
docs: ## the book of the documents, and the API documentation (mdBook is built once, if it is missing: a minute or two)
	@scripts/setup build
	@scripts/setup check
	@scripts/book >/dev/null
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	@echo "open $(TARGET)/book/html/index.html and $(TARGET)/doc/tandem_policy/index.html"

.PHONY: clean
clean: ## remove everything that was built (the test VM's kernel stays in ~/.cache/tandem)
	cargo clean
