#!/bin/sh
# Builds the native engine's wheel into engine/target/wheels, where cargo is found, for install.sh. Says in one line what it
# did; that nothing could be built is no failure, since grpcio serves then.
#   sh engine/build.sh .venv/bin/pip
# With ENGINE_BUILD=released it is the wheel of releases and images, for any Linux since 2014, and lies in dist/, too.
set -eu
bin=$(cd "$(dirname "$1")" && pwd)
pip=$bin/$(basename "$1")
cd "$(dirname "$0")"
rm -f target/wheels/namesrv_engine-*.whl
if [ -n "${ENGINE_WHEEL:-}" ]; then
    exit 0
fi
if ! sh cargo.sh; then
    echo 'engine: no cargo 1.85 or later was found, so grpcio serves; for the native engine run make engine ENGINE_WHEEL=..., with namesrv-engine or the path of a wheel that make wheel built elsewhere'
    exit 0
fi

build() {
    if [ "${ENGINE_BUILD:-}" = released ]; then
        (cd .. && "$bin/python" -m tools.engine_wheel) && mkdir -p target/wheels && cp ../dist/namesrv_engine-*.whl target/wheels
    else
        "$pip" wheel --disable-pip-version-check --quiet --no-deps --wheel-dir target/wheels .
    fi
}

echo 'engine: cargo was found; building the native engine (a minute or two) ...'
if ! said=$(build 2>&1); then
    echo "$said" >&2
    echo 'engine: the native engine could not be built (it needs a C compiler, too), so grpcio serves' >&2
fi
