#!/bin/sh
# Runs tests on a native core that is compiled with address and undefined-behaviour sanitizers: a byte read or written
# that is not the core's own, or arithmetic that C leaves undefined, ends the run with where it was.
#
#     scripts/sanitize.sh PYTHON [PYTEST-ARGUMENT...]
#
# The checkout's own core stays as it is: this one lies in .sanitized, in a copy of the package (links to it would lead
# the build of an sdist astray, which goes into a folder once, by whatever name it finds it first). Python asks
# for each block of memory by itself then (PYTHONMALLOC), since what lies inside Python's own large blocks is not seen.
# The campaigns have their records in .sanitized too, and go on where they stopped.
set -eu
cd "$(dirname "$0")/.."

python=$1
shift
runtime=$(${CC:-cc} -print-file-name=libasan.so)
[ -e "$runtime" ] || {
    echo "millstream: ${CC:-cc} has no address sanitizer (libasan.so); gcc has one, Debian's in libgcc-12-dev" >&2
    exit 1
}
package=.sanitized/millstream
rm -rf "$package"
mkdir -p .sanitized
cp -R src/millstream "$package"
rm -f "$package"/_native*
"$python" scripts/build_core.py --sanitize --into "$package"

export PYTHONPATH="$PWD/.sanitized" PYTHONMALLOC=malloc MILLSTREAM_CORE=native MILLSTREAM_CAMPAIGNS=.sanitized/campaigns
# What Python itself keeps to its end would be told as lost; tests/engine/test_leaks.py looks for what the core loses
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
export LD_PRELOAD="$runtime"
exec "$python" -m pytest -n0 "$@"
