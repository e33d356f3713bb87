#!/bin/sh
# Builds the native engine and installs it beside the name server, where that is possible; says in one line what it did.
set -eu
pip=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")"
version=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
major=${version% *}
minor=${version#* }
if [ -z "$version" ] || [ "$major" -lt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -lt 85 ]; }; then
    echo 'engine: no cargo 1.85 or later was found, so grpcio serves; for the native engine install its wheel: pip install namesrv-engine'
    exit 0
fi
echo 'engine: cargo was found; building the native engine (a minute or two) ...'
if ! said=$("$pip" install --disable-pip-version-check --quiet . 2>&1); then
    echo "$said" >&2
    echo 'engine: the native engine could not be built (it needs a C compiler, too), so grpcio serves' >&2
    exit 0
fi
echo 'engine: the native engine is installed; namesrv serve takes it (--engine auto)'
