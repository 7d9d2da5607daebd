#!/usr/bin/env bash
# make mount: makes, mounts, twice is harmless, a dead mount is cleared; make
# umount undoes it and keeps the image. And what it says to try works.
set -eu
cd "$(dirname "$0")/../.."
[ -e /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 77; }
[ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || { echo "skipped: no fusermount3"; exit 77; }
base=$(mktemp -d)
# With a blank, which /proc/mounts does not show as one.
dir="$base/a b"
mkdir "$dir"
. scripts/lib.sh
nenrin=$(release)/nenrin
cleanup() {
    for mount in "$dir/past" "$dir/mnt"; do "$nenrin" umount "$mount" >/dev/null 2>&1 || true; done
    rm -rf "$base"
}
trap cleanup EXIT
make() { command make --no-print-directory "$@" IMAGE="$dir/test.img" SIZE=64M MNT="$dir/mnt" </dev/null; }

out=$(make mount)
tries=$(sed -n 's/^    //p' <<<"$out")
[ "$(wc -l <<<"$tries")" = 5 ] || { echo "$out"; echo "not five lines to try"; exit 1; }
mountpoint -q "$dir/mnt"
before=$("$nenrin" info --json "$dir/mnt" | grep '"pid"')
make mount >/dev/null
after=$("$nenrin" info --json "$dir/mnt" | grep '"pid"')
[ "$before" = "$after" ] || { echo "make mount started a second daemon"; exit 1; }

# What it says to try, line by line; the last line unmounts.
tries=${tries//mkdir -p past/mkdir -p "'$dir/past'"}
tries=${tries//"'$dir/test.img' past"/"'$dir/test.img' '$dir/past'"}
tries=${tries//cat past/cat "'$dir'/past"}
tries=${tries//umount past/umount "'$dir/past'"}
tries=${tries//make umount/make umount MNT="'$dir/mnt'"}
said=$(bash -eu -c "$tries" 2>&1) || { echo "$said"; exit 1; }
grep -q '^hello$' <<<"$said" || { echo "$said"; echo "the past does not say hello"; exit 1; }
[ -e "$dir/test.img" ] && [ ! -e "$dir/mnt" ]
# Nothing is mounted any more, which is no failure.
said=$(make umount)
grep -qF "Nothing is mounted at $dir/mnt." <<<"$said" || { echo "$said"; exit 1; }

make mount >/dev/null
[ "$(cat "$dir/mnt/note")" = bye ]
pid=$("$nenrin" info --json "$dir/mnt" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
kill -9 "$pid"
make mount >/dev/null
[ "$(cat "$dir/mnt/note")" = bye ]
# What is in use stays mounted, and make umount fails.
(cd "$dir/mnt" && exec sleep 60) &
sleeper=$!
until [ "$(readlink "/proc/$sleeper/cwd")" = "$dir/mnt" ]; do sleep 0.05; done
! make umount >/dev/null 2>"$base/said" || { echo "what is in use was unmounted"; exit 1; }
kill "$sleeper"
wait "$sleeper" 2>/dev/null || true
grep -q "in use by sleep" "$base/said" || { cat "$base/said"; exit 1; }
make umount >/dev/null
[ ! -e "$dir/mnt" ]
# A last commit that failed is told although nothing is mounted any more.
make mount >/dev/null
stand_in=$base/stand-in${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/release
mkdir -p "$stand_in"
cat >"$stand_in/nenrin" <<T
#!/bin/sh
$(quoted "$(realpath "$nenrin")") "\$@"
echo "nenrin: the last commit failed" >&2
exit 1
T
chmod +x "$stand_in/nenrin"
! CARGO_TARGET_DIR="$base/stand-in" make umount >/dev/null 2>"$base/said" || { echo "a failed commit was swallowed"; exit 1; }
grep -q "the last commit failed" "$base/said" || { cat "$base/said"; exit 1; }
! mountpoint -q "$dir/mnt"
echo "make mount and make umount work"
