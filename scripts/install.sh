#!/bin/sh
# Installs one extra of this package, with one line that says how far it is: scripts/install.sh PYTHON EXTRA PIP-OPTION...
# pip itself says nothing but errors; those stay.
set -eu

python=$1 extra=$2
shift 2
began=$(date +%s)

say() {
    printf 'Installing %s: %s s' "$what" "$(($(date +%s) - began))"
}

case "$extra" in
demo) what="what the demo needs (Spark is a large download)" ;;
*) what="what the tests need" ;;
esac
[ -t 1 ] || printf 'Installing %s\n' "$what"
"$python" -m pip install -qq --disable-pip-version-check "$@" -e ".[$extra]" &
pip=$!
trap 'kill "$pip" 2>/dev/null; exit 130' INT TERM
while kill -0 "$pip" 2>/dev/null; do
    [ ! -t 1 ] || { printf '\r' && say; }
    sleep 1
done
wait "$pip" || {
    status=$?
    echo "millstream: pip could not install $what; its own words are above." >&2
    exit "$status"
}
[ ! -t 1 ] || printf '\r'
say && echo ", done"
