#!/bin/sh
# Says in one sentence what this machine lacks, before anything slow happens: prerequisites.sh python|java
set -eu

fail() {
    printf 'millstream: %s\n' "$1" >&2
    exit 1
}

check_python() {
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null 2>&1 || fail "no $python here: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)."
    "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' ||
        fail "Python 3.11 or newer is needed, and $python is $("$python" -c 'import platform; print(platform.python_version())'): install a newer one, or name it: make PYTHON=python3.12 ..."
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "this Python cannot make virtual environments: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)."
}

check_java() {
    java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java # the one Spark would start
    advice="Spark needs a Java runtime, 17 or newer: install openjdk-17-jre-headless (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    told=$("$java" -version 2>&1) || fail "no working Java here ($java). $advice."
    major=$(printf '%s\n' "$told" | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ] || fail "Java here ($java) is too old, version ${major:-unknown}. $advice."
}

case "${1:-}" in
python) check_python ;;
java) check_java ;;
*) fail "usage: prerequisites.sh python|java" ;;
esac
