# Two commands do everything: `make up` and `make test`. See README.md.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# Where cargo puts what it builds.
BUILT := $(or $(CARGO_TARGET_DIR),target)/debug
BUILT_FAST := $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help up up-scaled down test formatted licensed stories prove mutants bench crashes gen tidy lint install-missing install-engines

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install-missing:
	@scripts/install-missing

install-engines:
	@scripts/install-engines

up: install-missing ## build, and run everything here: Postgres, the control plane, simulated nodes; Ctrl-C stops it
	@cargo build --bin berth
	@$(BUILT)/berth up

up-scaled: install-missing install-engines ## the same as it runs on many machines: NATS, Temporal, two processes of each role
	@cargo build --bin berth
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BUILT)/berth up --scaled

down: ## stop what `make up` or `berth up --detach` started
	@$(BUILT)/berth down

# The lints look on while the tests are built, so that everything is compiled once: what `cargo clippy` would tell the compiler.
LINTED := $(shell if command -v clippy-driver >/dev/null 2>&1; then echo 'RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__'; fi)

test: install-missing install-engines formatted ## everything that must hold: lints, tidy, all tests on a Postgres of their own
	@if [ -z "$(LINTED)" ]; then echo "clippy is not installed: lints not checked"; fi
	@env $(LINTED) cargo xtask tidy
	@env $(LINTED) cargo xtask test

formatted: licensed
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "rustfmt is not installed: formatting not checked"; fi

licensed:
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --log-level error check licenses bans sources; else echo "cargo-deny is not installed: licences and bans not checked"; fi

lint: formatted ## the lints by themselves, and those of the documentation
	@if cargo clippy --version >/dev/null 2>&1; then cargo clippy --quiet --workspace --all-targets -- -D warnings; else echo "clippy is not installed: lints not checked"; fi
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items

tidy: ## what no compiler checks: direction of crates, the single writer, sizes, names
	@cargo xtask tidy

prove: install-missing ## the long proofs, in a release build; one JSON line a proof
	@cargo run --quiet --release --package proofs
	@cargo xtask simulate ledger
	@cargo xtask simulate

stories: install-missing install-engines ## the stories of the allocation contract on NATS and Temporal: the three combinations that `make test` does not have
	@cargo xtask stories

mutants: install-missing ## take each guard away in a copy of the tree, and see the simulation go red
	@cargo xtask mutants

bench: install-missing ## what it costs, against the database's own ceiling, into docs/generated/bench.md; QUICK=1 for three minutes, ONLY=create|flat|recovery|release|writer|to_active|outbox|charging|beside|agents|replicas|reconnect|overload|footprint|storm|packing for a part, or several with commas, or ONLY=every for each of them also with QUICK=1, AGENTS=n for fewer than 10000, ONLY=scaled to kill processes for MINUTES (10), ONLY=falls to stop Postgres FALLS (40) times; PEERS=1 also beside what others have made, or ONLY=placement|slurm|queue|temporal|restate beside one of them
	@if [ "$$ONLY" = scaled ]; then scripts/install-engines; fi
	@cargo build --quiet --release --package berth --package bench
	@if [ -z "$$ONLY$$QUICK" ]; then export TABLE="$${TABLE-docs/generated/bench.md}"; fi; PATH="$(CURDIR)/.tools/bin:$$PATH" $(BUILT_FAST)/bench

crashes: install-missing ## kill the whole product without warning, KILLS times (200) under load, and look at what is left
	@cargo build --quiet --release --package berth --package bench
	@ONLY=crashes CRASHES=$(or $(KILLS),200) $(BUILT_FAST)/bench

gen: install-missing ## write docs/generated anew
	@cargo xtask gen
