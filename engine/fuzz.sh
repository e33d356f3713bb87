#!/bin/sh
# Gives the native engine random connections for so many seconds, and its properties 5,000 random cases each.
#   sh engine/fuzz.sh 60
# A failure prints its input and how to repeat it. Skipped in one line without cargo.
set -eu
cd "$(dirname "$0")"
if ! sh cargo.sh; then
    echo 'engine: skipped: no cargo 1.85 or later was found, so the native engine is not fuzzed'
    exit 0
fi
# As in lint.sh, so that nothing is compiled again.
export CARGO_PROFILE_DEV_DEBUG=0
PROPTEST_CASES=5000 cargo test --quiet --locked --no-default-features --lib
FUZZ_SECONDS=${1:-30} cargo test --quiet --locked --no-default-features --test fuzz -- --nocapture
