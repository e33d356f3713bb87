#!/bin/sh
# Prints the path of Helm, which renders deploy/helm. The first time it compiles Helm into build/, with Go: some minutes. With
# --present it compiles nothing.
set -eu
cd "$(dirname "$0")/../.."
version=3.22.0
folder=$PWD/build/helm-$version
if [ -x "$folder/helm" ]; then
    echo "$folder/helm"
    exit 0
fi
if [ "${1:-}" = --present ] || ! command -v go >/dev/null; then
    echo "no Helm $version: tests/containers/install_helm.sh compiles it, with Go" >&2
    exit 1
fi
mkdir -p "$folder"
if ! GOBIN=$folder go install -ldflags=-s "helm.sh/helm/v3/cmd/helm@v$version" 2>"$folder/install.log"; then
    echo "Helm $version did not compile: $folder/install.log" >&2
    exit 1
fi
echo "$folder/helm"
