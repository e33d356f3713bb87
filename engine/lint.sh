#!/bin/sh
# Format, clippy and tests of the native engine; skipped in one line where there is no cargo.
set -eu
cd "$(dirname "$0")"
if ! cargo --version >/dev/null 2>&1; then
    echo 'engine: cargo is missing; the native engine is not checked'
    exit 0
fi
cargo fmt --check
cargo clippy --quiet --locked
cargo clippy --quiet --locked --no-default-features --all-targets
cargo test --quiet --locked --no-default-features
# The cache beside a change, in every order that threads can take. In a folder of its own: the flag rebuilds everything.
RUSTFLAGS='--cfg loom' cargo test --quiet --locked --release --no-default-features --lib --target-dir target/loom cache
