#!/bin/sh
# Installs what tests/containers needs to build and run containers, where that is possible: on Debian, as root.
# Anywhere else it says so and succeeds: the tests then report themselves as skipped, with the reason.
set -eu

packages="podman runc netavark aardvark-dns iptables mmdebstrap iproute2 util-linux catatonit uidmap systemd dbus python3-venv"

missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -z "$missing" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "tests/containers: not installing$missing: that takes root and apt-get" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086  # a list of words
if ! apt-get install -q -y --no-install-recommends $missing; then
    echo "tests/containers: could not install$missing" >&2
fi
