#!/usr/bin/env bash
# What is installed, mounted and unmounted with is what was built, wherever cargo puts that: as the environment says, or a
# configuration of cargo's. It was target/release, where an old program may lie.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
# Whoever runs this may build for a target: here it is said where that counts.
unset CARGO_BUILD_TARGET
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
wrong() { say "WRONG: $*" >&2; exit 1; }
# A program that says that it is this one.
mkdir -p "$dir/o d d/release" "$dir/home"
program="$dir/o d d/release/nenrin"
cat >"$program" <<'T'
#!/bin/sh
echo "$*" >>"$0.calls"
case "$1 $2" in "help --man") : >"$3/nenrin.8" ;; umount*) echo "nenrin: $2: nothing is mounted here" >&2; exit 1 ;; esac
T
chmod +x "$program"

# used: that it is used.
used() {
    rm -rf "$program.calls" "$dir/dest"
    DESTDIR=$dir/dest PREFIX=/usr scripts/install.sh >/dev/null
    cmp -s "$program" "$dir/dest/usr/bin/nenrin" || wrong "$1: another program was installed"
    scripts/mount.sh "$dir/image" 64M "$dir/mnt" >"$dir/said"
    grep -qF "$(quoted "$program") info $(quoted "$dir/mnt")" "$dir/said" || wrong "$1: $(cat "$dir/said")"
    [ "$(scripts/umount.sh "$dir/mnt")" = "Nothing is mounted at $dir/mnt." ] || wrong "$1: umount"
    for call in "help --man $dir/dest/usr/share/man/man8" "mkfs --size 64M $dir/image" "mount $dir/image $dir/mnt" "umount $dir/mnt"; do
        grep -qxF "$call" "$program.calls" || wrong "$1: not called: $call"
    done
}
CARGO_TARGET_DIR="$dir/o d d" used "the environment"
[ "$(CARGO_TARGET_DIR="$dir/o d d" CARGO_BUILD_TARGET=x86_64-none release)" = "$dir/o d d/x86_64-none/release" ] || wrong "a target"
find_cargo
printf '[build]\ntarget-dir = "%s"\n' "$dir/o d d" >"$dir/home/config.toml"
(
    unset CARGO_TARGET_DIR
    export CARGO_HOME="$dir/home"
    used "a configuration"
)
# A build.target of a configuration, which cargo tells nobody but who builds; where it says none any more the usual place counts.
mkdir -p "$dir/other/release" "$dir/other/triple/release"
for built in "$dir/other/release" "$dir/other/triple/release"; do cp "$program" "$built/nenrin"; done
cat >"$dir/cargo" <<T
#!/bin/sh
case \$1 in
--version) echo "cargo 1.$RUST_MIN.0" ;;
metadata) echo '{"target_directory":"$dir/other"}' ;;
build) echo "{\"executable\":\"\$(cat "$dir/puts")/nenrin\"}" ;;
esac
T
chmod +x "$dir/cargo"
for built in "$dir/other/triple/release" "$dir/other/release"; do
    echo "$built" >"$dir/puts"
    CARGO="$dir/cargo" scripts/build.sh || wrong "what cargo built in $built"
    [ "$(CARGO="$dir/cargo" release)" = "$built" ] || wrong "built in $built, used of $(CARGO="$dir/cargo" release)"
done
# Without cargo, which unmounting does not need.
[ "$(PATH=/usr/bin:/bin HOME=$dir CARGO='' CARGO_HOME=$dir/none SUDO_USER='' CARGO_TARGET_DIR=/x release)" = /x/release ] || wrong "no cargo"
say "   what was built is what is used"
