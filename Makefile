# Two commands do everything: `make up` and `make test`. See README.md.

SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help up test prove bench gen tidy lint install-missing

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install-missing:
	@scripts/install-missing

up: install-missing ## build, start a private Postgres, and walk an allocation through its life on it
	@cargo run --quiet --package xtask -- up

test: install-missing lint tidy ## everything that must hold: lints, tidy, all tests on a Postgres of their own
	@cargo xtask test

lint:
	@if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "rustfmt is not installed: formatting not checked"; fi
	@if cargo clippy --version >/dev/null 2>&1; then cargo clippy --quiet --workspace --all-targets -- -D warnings; else echo "clippy is not installed: lints not checked"; fi
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --log-level error check licenses bans sources; else echo "cargo-deny is not installed: licences and bans not checked"; fi

tidy: ## what no compiler checks: direction of crates, the single writer, sizes, names
	@cargo xtask tidy

prove: install-missing ## the long proofs, in a release build; one JSON line a proof
	@cargo run --quiet --release --package proofs

bench: install-missing ## what it costs, as ratios of the database's own ceiling; QUICK=1 for a short run
	@cargo run --quiet --release --package bench

gen: install-missing ## write docs/generated anew
	@cargo xtask gen
