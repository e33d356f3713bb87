#!/bin/sh
# Succeeds where there is a cargo that can build the native engine: 1.85 or later.
version=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
major=${version% *}
minor=${version#* }
[ -n "$version" ] && { [ "$major" -gt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -ge 85 ]; }; }
