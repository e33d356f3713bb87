#!/bin/sh
# Installs the native engine beside the name server: the wheel ENGINE_WHEEL, or else what build.sh has built, if it has.
#   sh engine/install.sh .venv/bin/pip
set -eu
pip=$1
if [ -z "${ENGINE_WHEEL:-}" ]; then
    set -- "$(dirname "$0")"/target/wheels/namesrv_engine-*.whl
    if [ ! -e "$1" ]; then
        exit 0
    fi
    ENGINE_WHEEL=$1
fi
"$pip" install --disable-pip-version-check --quiet --force-reinstall --no-deps "$ENGINE_WHEEL"
echo "engine: the native engine is installed from $ENGINE_WHEEL"
