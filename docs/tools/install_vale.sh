#!/bin/sh
# Prints the path of Vale, the linter of prose. The first time it compiles Vale into build/: two minutes, with Go and a C
# compiler. With --present it compiles nothing.
#
# The package `vale` of PyPI downloads a binary from elsewhere at its first run. Keep the version: v3.12.0 is not in the Go
# proxy, and versions from v3.21.0 on declare another module path.
set -eu
cd "$(dirname "$0")/../.."
version=3.15.2
folder=$PWD/build/vale-$version
if [ -x "$folder/vale" ]; then
    echo "$folder/vale"
    exit 0
fi
if vale --version 2>/dev/null | grep -qF " $version"; then
    command -v vale
    exit 0
fi
if [ "${1:-}" = --present ]; then
    echo "no Vale $version" >&2
    exit 1
fi
if ! command -v go >/dev/null; then
    echo "no Vale $version and no Go to compile it with" >&2
    exit 1
fi
mkdir -p "$folder"
echo "compiling Vale $version into $folder, which takes two minutes once" >&2
if ! GOBIN=$folder go install "github.com/errata-ai/vale/v3/cmd/vale@v$version" 2>"$folder/install.log"; then
    echo "Vale $version did not compile (it needs Go and a C compiler): $folder/install.log" >&2
    exit 1
fi
echo "$folder/vale"
