#!/bin/sh
# Puts a Redis 8 beside the one that is installed, for the comparisons with a live server, and installs nothing:
#   scripts/newer-redis.sh           the one of Debian's next release, unpacked with a C library of its own
#   scripts/newer-redis.sh SOURCE    built from a checkout of Redis's source, which is copied first
# The program is then .servers/redis-server-8, where the tests look for it.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
servers=$root/.servers
program=$servers/redis-server-8
release=${RELEASE:-trixie}

# What redis-server is linked with, and what those libraries are linked with. The scripts that the packages run when they
# are installed, and what only those need, are left out.
packages="redis-tools libc6 libatomic1 libcap2 libgcc-s1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libsystemd0 libzstd1 zlib1g"

unpack() {
    work=$servers/$release
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root"
    : >"$work/status" # as if nothing were installed: versions are chosen by the other release alone
    signed=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=${MIRROR:-http://deb.debian.org}
    {
        echo "deb [signed-by=$signed] $mirror/debian $release main"
        [ "$release" = sid ] || echo "deb [signed-by=$signed] $mirror/debian-security $release-security main"
    } >"$work/sources.list"
    {
        echo "Dir::Etc::SourceList \"$work/sources.list\";"
        echo 'Dir::Etc::SourceParts "/dev/null"; Dir::Etc::Preferences "/dev/null"; Dir::Etc::PreferencesParts "/dev/null";'
        echo "Dir::State \"$work\"; Dir::State::Lists \"$work/lists\"; Dir::State::Status \"$work/status\";"
        echo "Dir::Cache \"$work/cache\"; APT::Sandbox::User \"\";"
    } >"$work/apt.conf"
    export APT_CONFIG="$work/apt.conf"
    apt-get -qq update
    # shellcheck disable=SC2086 # the names are words of their own
    (cd "$work/debs" && apt-get -qq download $packages)
    for package in "$work"/debs/*.deb; do
        dpkg -x "$package" "$work/root"
    done
    libraries=$(dirname "$(find "$work/root/usr/lib" -name 'libc.so.6' | head -n 1)")
    loader=$(find "$libraries" -name 'ld-linux*.so*' | head -n 1)
    # redis-tools has the program; the package redis-server only starts it
    found=$work/root/usr/bin/redis-check-rdb
    printf '#!/bin/sh\nexec "%s" --library-path "%s" --argv0 redis-server "%s" "$@"\n' "$loader" "$libraries" "$found" >"$program"
    rm -rf "$work/lists" "$work/cache" "$work/debs"
}

build() {
    work=$servers/built
    rm -rf "$work"
    cp -R "$1" "$work"
    make -C "$work/src" -j"$(nproc)" MALLOC=libc redis-server >"$servers/build.log" 2>&1 || {
        tail -n 20 "$servers/build.log" >&2
        exit 1
    }
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$work/src/redis-server" >"$program"
}

mkdir -p "$servers"
rm -f "$program"
if [ -n "${1:-}" ]; then build "$1"; else unpack; fi
chmod +x "$program"
"$program" --version
