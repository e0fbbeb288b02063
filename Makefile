# The make targets of Tandem; `make` alone lists them.
# Each target first installs or names its requirements (scripts/setup), so a fresh clone needs no other step.
# Everything goes to target/, except for downloads and slow builds that several checkouts share: the test VM's kernels,
# the Debian 12 of the package test, the lab's kernels and saved machines, and mdBook, all in ~/.cache/tandem.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),target)
TANDEM := $(TARGET)/release/tandem
TANDEM_LAB := $(TARGET)/release/tandem-lab

# Arguments of demo, bench and lab targets: make demo ARGS='--mix 4,2,1'
ARGS ?=
# Debian kernel series that the test VM boots: 6.1 is the last with CFS, 6.12 has EEVDF, 7.3 weighs groups by active CPUs
KERNELS ?= 6.1 6.12 7.3

.PHONY: help
help: ## list the targets
	@printf 'Tandem: vCPU scheduling for Linux/KVM. Targets:\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nARGS passes arguments to demo, bench and lab targets: make demo ARGS="--mix 4,2,1"\n'

.PHONY: setup
setup: ## install missing Debian packages (as root; otherwise list them)
	@scripts/setup

.PHONY: build
build: ## build the product in release mode: tandem and tandem-sim
	@scripts/setup build
	cargo build --release --package tandem-cli --package tandem-sim-cli

.PHONY: build-lab
build-lab:
	@scripts/setup build
	cargo build --release --package tandem-research

.PHONY: wheel
wheel: ## build the Python wheel tandem-sched in target/wheels
	@scripts/setup build
	@scripts/setup wheel
	@scripts/wheel

.PHONY: deb
deb: build ## build the Debian package in target/deb: programs, units, manuals, completions, dashboard, alert rules
	@scripts/setup deb
	@scripts/deb

.PHONY: demo
demo: ## run microVMs on this host under contention, first without and then with the daemon
	@scripts/setup build
	cargo build --release --package tandem-cli
	$(TANDEM) demo $(ARGS)

.PHONY: test
test: ## run all checks and tests, including the VM with cgroup v2 and the emulated machines
	@KERNELS='$(KERNELS)' scripts/test

.PHONY: test-vm
test-vm: ## run the live tests in a VM with cgroup v2 (QEMU; KERNELS=6.1 selects one kernel)
	@scripts/setup
	@KERNELS='$(KERNELS)' scripts/test-vm/run

.PHONY: bench
bench: build-lab ## measure costs: simulator events, daemon and exporter at 1,000 vCPUs, 200 VM starts and stops
	$(TANDEM_LAB) bench sim
	$(TANDEM_LAB) bench sim bench-scale --vary vm.vm.count=4,16,64,256
	$(TANDEM_LAB) bench overhead
	$(TANDEM_LAB) bench churn

.PHONY: bench-fairness
bench-fairness: build-lab ## measure fair shares: every mix of VMs, three runs (35 minutes or more)
	$(TANDEM_LAB) bench fairness $(ARGS)

.PHONY: bench-work
bench-work: build-lab ## measure the work of every workload next to other VMs, relative to alone (3.5 hours; less with ARGS='--runs 1')
	$(TANDEM_LAB) bench work $(ARGS)

.PHONY: bench-guest
bench-guest: build-lab ## measure programs in this VM: stock, with the guest agent, with manual settings (ARGS='--seconds 2': 36 minutes)
	@scripts/setup bench
	$(TANDEM_LAB) bench guest --variants agent,taskset,haltpoll \
		--json $(TARGET)/bench-guest.json --html $(TARGET)/bench-guest.html $(ARGS)

.PHONY: lab
lab: build-lab ## measure the kernel patches in emulated machines (ARGS=full: all experiments, hours; ARGS=programs; or ARGS='apples wake')
	@scripts/setup lab
	@research/lab/experiments/all $(ARGS)

.PHONY: lab-smoke
lab-smoke: build-lab ## test the emulated machines: a small patched kernel in QEMU, a short run in Bochs
	@scripts/setup lab
	@research/lab/smoke

.PHONY: fmt
fmt: ## format the code
	cargo fmt --all

.PHONY: check
check: ## run repository checks, formatting check and lints
	@scripts/setup build
	@scripts/setup check
	@scripts/check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

.PHONY: docs
docs: ## build the book of the documents and the API documentation (installs mdBook once, 1-2 minutes)
	@scripts/setup build
	@scripts/setup check
	@scripts/book >/dev/null
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	@echo "open $(TARGET)/book/html/index.html and $(TARGET)/doc/tandem_policy/index.html"

.PHONY: references
references: ## regenerate docs/reference/{cli,settings,metrics,json}.md and docs/figures.md
	@scripts/setup build
	cargo build --package tandem-cli --package tandem-sim-cli --package tandem-research
	@scripts/references
	research/figures

.PHONY: clean
clean: ## remove build outputs (~/.cache/tandem stays)
	cargo clean
