#!/bin/sh
# Compares h2/ with the released crate and h2.patch. With --write, makes h2/ from both.
#   sh engine/vendor/h2.sh [--write]
set -eu
cd "$(dirname "$0")"
if ! packages=$(cargo metadata --quiet --locked --format-version 1 --manifest-path released/Cargo.toml); then
    echo 'vendor/h2.sh: skipped: cargo cannot get the released h2, so vendor/h2 is not compared with it'
    [ "${CI:-}" != true ]
    exit
fi
released=$(printf %s "$packages" | sed -n 's|.*"manifest_path":"\([^"]*/h2-[0-9.]*\)/Cargo.toml".*|\1|p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$released/src" "$released/Cargo.toml" "$released/LICENSE" "$work"
GIT_CEILING_DIRECTORIES=$(dirname "$work") git -C "$work" apply - <h2.patch
if [ "${1:-}" = --write ]; then
    rm -rf h2
    mkdir h2
    cp -R "$work/." h2
elif ! diff -r "$work" h2; then
    echo 'vendor/h2.sh: vendor/h2 is not the released h2 with h2.patch' >&2
    exit 1
fi
