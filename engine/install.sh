#!/bin/sh
# Installs the native engine beside the name server: the wheel ENGINE_WHEEL, or else, where cargo is found, what it builds.
# Says in one line what it did; that nothing could be built is no failure, since grpcio serves then.
#   sh engine/install.sh .venv/bin/pip
set -eu
pip=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
if [ -n "${ENGINE_WHEEL:-}" ]; then
    "$pip" install --disable-pip-version-check --quiet --force-reinstall --no-deps "$ENGINE_WHEEL"
    echo "engine: the native engine is installed from $ENGINE_WHEEL; namesrv serve takes it (--engine auto)"
    exit 0
fi
cd "$(dirname "$0")"
if ! sh cargo.sh; then
    echo 'engine: no cargo 1.85 or later was found, so grpcio serves; for the native engine run make engine ENGINE_WHEEL=..., with namesrv-engine or the path of a wheel that make wheel built elsewhere'
    exit 0
fi
echo 'engine: cargo was found; building the native engine (a minute or two) ...'
if ! said=$("$pip" install --disable-pip-version-check --quiet . 2>&1); then
    echo "$said" >&2
    echo 'engine: the native engine could not be built (it needs a C compiler, too), so grpcio serves' >&2
    exit 0
fi
echo 'engine: the native engine is installed; namesrv serve takes it (--engine auto)'
