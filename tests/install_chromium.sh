#!/bin/sh
# Installs the browser that tests of the console's page and docs/tools/make_screenshots.py need: on Debian, as root.
# Anywhere else it says so and succeeds: the tests then report themselves as skipped, with the reason.
set -eu

for program in chromium chromium-browser google-chrome; do
    if command -v "$program" >/dev/null; then
        exit 0
    fi
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "tests: not installing chromium: that takes root and apt-get" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
if ! apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; then
    echo "tests: could not install chromium" >&2
fi
