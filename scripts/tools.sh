#!/usr/bin/env bash
# tools.sh: public test suites that no distribution packages, into target/tools/bin: pjdfstest and
# fsx from crates.io; SQLite's speedtest1 and kvtest from the source package of this
# distribution. And udevadm, where there is no udev: unpacked into target/tools/udev, since an installed one would start its daemon. What is there already is left alone; what cannot be had is said, and the
# tests that need it say so too.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
find_cargo
tools=$PWD/target/tools
mkdir -p "$tools/bin"

# The name and version of a crate whose program has the crate's name.
crate() {
    local name=$1 version=$2
    [ -x "$tools/bin/$name" ] && return
    say "Building $name $version"
    # Without network only if everything is in cargo's cache.
    "$CARGO" install --quiet --locked --root "$tools" --target-dir "$tools/build" "$name@$version" </dev/null >"$tools/$name.log" 2>&1 ||
        "$CARGO" install --quiet --locked --offline --root "$tools" --target-dir "$tools/build" "$name@$version" </dev/null >>"$tools/$name.log" 2>&1 ||
        { say "$name $version could not be built: $(grep -m 1 -E '^error' "$tools/$name.log")" >&2; return; }
}

# This distribution's package lists, for sources instead of packages, in $1.
source_lists() {
    local file
    mkdir -p "$1/parts" "$1/lists/partial" "$1/cache"
    : >"$1/sources.list"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        case $file in
        *.list) sed -n 's/^deb /deb-src /p' "$file" >>"$1/sources.list" ;;
        *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"$1/parts/$(basename "$file")" ;;
        esac
    done 2>/dev/null
}

sqlite() {
    [ -x "$tools/bin/speedtest1" ] && [ -x "$tools/bin/kvtest" ] && return
    command -v apt-get >/dev/null || { say "speedtest1 and kvtest: no apt-get to get SQLite's source with" >&2; return; }
    say "Building SQLite's speedtest1 and kvtest"
    local apt=$tools/apt
    source_lists "$apt"
    (
        cd "$apt" || exit 1
        options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o "Dir::Etc::SourceParts=$apt/parts"
            -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=)
        apt-get "${options[@]}" update
        apt-get "${options[@]}" source --download-only sqlite3 &&
            tar -xf sqlite3_*.orig.tar.* --wildcards --strip-components=2 '*/test/speedtest1.c' '*/test/kvtest.c' &&
            cc -O1 -o "$tools/bin/speedtest1" speedtest1.c -lsqlite3 -lpthread &&
            cc -O1 -o "$tools/bin/kvtest" kvtest.c -lsqlite3 -lpthread
    ) </dev/null >"$tools/sqlite.log" 2>&1 || say "speedtest1 and kvtest could not be built: $(tail -n 1 "$tools/sqlite.log")" >&2
    rm -rf "$apt"
}

udev() {
    PATH="$PATH:/usr/sbin:/sbin" command -v udevadm >/dev/null && return
    [ ! -e "$tools/udev/rules" ] || return
    command -v apt-get >/dev/null || { say "udevadm: no apt-get to get it with" >&2; return; }
    rm -rf "$tools/udev"
    mkdir -p "$tools/udev/packages"
    (
        cd "$tools/udev/packages" || exit 1
        get() { apt-get -qq -o APT::Sandbox::User= download "$@"; }
        get udev libsystemd-shared || { apt-get -qq update && get udev libsystemd-shared; } || exit 1
        for package in *.deb; do dpkg-deb -x "$package" ../root || exit 1; done
        # Where they are differs with whether /lib is /usr/lib.
        find "$tools/udev/root" -name 'libsystemd-shared*.so' -exec mv -t .. {} + &&
            find "$tools/udev/root" -path '*bin/udevadm' -type f -exec mv -t .. {} + &&
            find "$tools/udev/root" -name rules.d -path '*lib/udev*' -prune -exec mv -T {} ../rules \;
    ) </dev/null >"$tools/udev.log" 2>&1
    [ -e "$tools/udev/rules" ] || say "udevadm cannot be had: $(tail -n 1 "$tools/udev.log")" >&2
}

# Most of what they do is calls: to be built soon is worth more here than to be fast.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
# Mostly waits for the network.
sqlite &
udev &
crate fsx 0.3.0
# Only root can run it.
[ "$(id -u)" != 0 ] || crate pjdfstest 0.2.2
rm -rf "$tools/build"
wait
