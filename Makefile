# Every target does its own set-up; a second run finds it done.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
ENGINE := target/release/stepbox
PACKAGES := python langchain llamaindex openai
CROSS := aarch64-unknown-linux-gnu
# Debian: gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
CROSS_LINKER := $(shell command -v aarch64-linux-gnu-gcc || echo cc)
FOLDERS := $(addprefix adapters/,$(PACKAGES))

export STEPBOX_BIN := $(CURDIR)/$(ENGINE)
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup engine demo test check bench lint fmt test-unit test-e2e test-user test-fallback test-vm engine-aarch64 test-vm-aarch64 fuzz soak clean

help: ## say what there is to make
	@sed -n 's/^\([a-z0-9-]*\):.* ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: engine $(STAMP) ## build the engine, install everything into .venv

engine:
	cargo build --release --locked

$(STAMP): $(addsuffix /pyproject.toml,$(FOLDERS)) examples/requirements.txt tests/requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    $(foreach folder,$(FOLDERS),--editable '$(folder)[dev]') --requirement examples/requirements.txt --requirement tests/requirements.txt
	touch $@

demo: setup ## run the main job: an agent loop on a real table, in sandboxes
	$(BIN)/python examples/demo.py

test: ## run every test, as the caller and as an unprivileged user
	tests/every.sh setup lint test-unit test-e2e test-user test-fallback

check: lint test-unit engine ## lint, unit tests and the cold path: under 3 minutes once built
	tests/suite.sh cold

lint: $(STAMP) ## formatting, lints, types, generated stubs
	tests/lint.sh $(FOLDERS)

fmt: $(STAMP) ## format everything
	cargo fmt
	for folder in $(FOLDERS) examples tests; do $(BIN)/ruff format "$$folder"; $(BIN)/ruff check --fix --exit-zero "$$folder"; done

test-unit: $(STAMP)
	tests/suite.sh unit

test-e2e: setup
	tests/suite.sh e2e

test-user: setup
	cargo test --locked --no-run 2>&1 | sed -n 's/^ *Executable .*(\(.*\))$$/\1/p' > target/test-executables
	tests/as_user.sh tests/suite.sh built

test-fallback: setup ## the limits where no cgroup can be had, as the caller and as an unprivileged user
	tests/without_cgroups.sh tests/suite.sh fallback
	[ "$$(id -u)" -ne 0 ] || STEPBOX_TEST_CGROUPS=none tests/as_user.sh tests/suite.sh fallback

# Each boots a Debian with systemd and cgroup v2 in an emulator (qemu, no KVM): the host that most users have.
test-vm: setup ## virtual machine (systemd, cgroup v2): steps as a user and as root, containers
	tests/vm/smoke.sh
	STEPBOX_VM_USER=root tests/vm/smoke.sh
	STEPBOX_VM_USER=root STEPBOX_VM_KERNEL=backports tests/vm/smoke.sh containers.py

engine-aarch64:
	rustup target add $(CROSS) 2> /dev/null
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$(CROSS_LINKER) cargo build --release --locked --target $(CROSS)

test-vm-aarch64: $(STAMP) engine-aarch64 ## the same steps as a user of such a machine of aarch64
	STEPBOX_VM_ARCH=aarch64 tests/vm/smoke.sh

fuzz: setup ## an hour of fuzzing, or FUZZ_SECONDS, shared among all targets
	tests/fuzz.sh

soak: setup test-vm test-vm-aarch64 fuzz ## 10,000 steps in a row, the virtual machines, and the fuzzers
	$(BIN)/python tests/soak.py

bench: setup ## times of calls, beside a plain subprocess and bubblewrap; BENCH=--quick is short
	$(BIN)/python tests/perf/bench.py $(BENCH)

clean: ## remove what was built and installed
	rm -rf target/debug target/release $(VENV) demo-output examples/data/generated
