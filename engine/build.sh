#!/bin/sh
# Builds the native engine's wheel into engine/target/wheels for install.sh, where cargo is found. Keeps a wheel that is newer
# than the sources. A failed build is reported and exits with 0: the rest of the project works without the engine.
#   sh engine/build.sh .venv/bin/pip
# ENGINE_BUILD=released builds the wheel of releases and images, for Linux with glibc 2.17 or later, and copies it to dist/.
set -eu
bin=$(cd "$(dirname "$1")" && pwd)
pip=$bin/$(basename "$1")
cd "$(dirname "$0")"
if [ -n "${ENGINE_WHEEL:-}" ]; then
    exit 0
fi
for wheel in target/wheels/namesrv_engine-*.whl; do
    if [ "${ENGINE_BUILD:-}" != released ] && [ -e "$wheel" ] &&
        [ -z "$(find src vendor Cargo.toml Cargo.lock pyproject.toml -newer "$wheel" | head -n 1)" ]; then
        exit 0
    fi
done
rm -f target/wheels/namesrv_engine-*.whl
if ! sh cargo.sh; then
    echo 'engine: no cargo 1.85 or later was found, so the native engine is missing: make engine ENGINE_WHEEL=PATH installs a wheel that make wheel built elsewhere; without it, namesrv serves on --engine development alone'
    exit 0
fi

build() {
    if [ "${ENGINE_BUILD:-}" = released ]; then
        (cd .. && "$bin/python" -m release.engine_wheel) && mkdir -p target/wheels && cp ../dist/namesrv_engine-*.whl target/wheels
    else
        "$pip" wheel --disable-pip-version-check --quiet --no-deps --wheel-dir target/wheels .
    fi
}

echo 'engine: cargo was found; building the native engine (a minute or two) ...'
if ! said=$(build 2>&1); then
    echo "$said" >&2
    echo 'engine: the native engine could not be built (it needs a C compiler, too): namesrv serves on --engine development alone' >&2
fi
