# Shared by the scripts that put real work on a volume. Sourced by bash from the
# root of the repository, after `set -euo pipefail`.
# shellcheck shell=bash
#
#   begin NAME           a place for everything: $W, with $IMG and $MNT in it
#   need PROGRAM...      ends with 77, and says so, where one is missing
#   volume SIZE          a new volume in $IMG
#   up [OPTIONS]         mounts it at $MNT; as root with dev,suid,allow_other
#   down                 unmounts it
#   cut                  kills the daemon with SIGKILL
#   checked              `nenrin check --data` is clean
#   figure WHAT VALUE    one line of the report
. scripts/lib.sh

NENRIN=${NENRIN:-$(release)/nenrin}
HERE=$PWD/scripts/work

skip() { say "skipped: $*"; exit 77; }
wrong() { say "WRONG: $*" >&2; return 1; }
figure() { printf '   %-58s %s\n' "$1" "$2"; }
now_ms() { date +%s%3N; }
is_root() { [ "$(id -u)" = 0 ]; }

need() {
    for program in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null 2>&1 || skip "$program is missing"
    done
}

begin() {
    [ -x "$NENRIN" ] || fail "$NENRIN is missing: make build"
    [ -w /dev/fuse ] || skip "there is no /dev/fuse to use"
    is_root || command -v fusermount3 >/dev/null 2>&1 || skip "neither root nor fusermount3"
    PATH="$PATH:/usr/sbin:/sbin"
    export LC_ALL=C.UTF-8 TZ=UTC
    if [ -n "${SOAK_STATE:-}" ]; then
        W=$SOAK_STATE
        mkdir -p "$W"
        rest_unmount "$W"
    else
        W=$(mktemp -d "${TMPDIR:-/var/tmp}/nenrin-$1.XXXXXX")
    fi
    W=$(cd "$W" && pwd -P)
    IMG=$W/volume.img MNT=$W/mnt LOG=$W/daemon.log
    mkdir -p "$MNT" 2>/dev/null || true
    WORK_END=$((SECONDS + ${SOAK_SECONDS:-86400}))
    PIDS=()
    trap 'failed $LINENO' ERR
    trap finish EXIT
    trap 'exit 130' INT TERM
}

# True while the share of time that the soak run gave lasts.
time_left() { [ "$SECONDS" -lt "$WORK_END" ]; }

# In a soak run what is done is remembered, and the next run goes on behind it.
done_before() { [ -n "${SOAK_STATE:-}" ] && grep -qxF "$1" "$W/done" 2>/dev/null; }
is_done() { [ -z "${SOAK_STATE:-}" ] || echo "$1" >>"$W/done"; }
# At the end of a cache mode: whether there is time for more.
enough_for_now() { [ -z "${SOAK_STATE:-}" ] || time_left || { say "   $(wc -l <"$W/done") steps so far"; exit 75; }; }

failed() {
    say "FAILED at line $1 of $(basename "$0"); what the daemon reported:" >&2
    [ ! -s "$LOG" ] || tail -n 20 "$LOG" >&2
}

# Whatever is mounted below a directory, in what state ever.
rest_unmount() {
    local dir
    { grep -F " $1/" /proc/mounts || true; } | cut -d' ' -f2 | sort -r | while read -r dir; do
        "$NENRIN" umount "$dir" >/dev/null 2>&1 || umount -l "$dir" 2>/dev/null || fusermount3 -uz "$dir" 2>/dev/null || true
    done
}

finish() {
    local code=$?
    trap - ERR EXIT
    set +e
    local pid
    for pid in "${PIDS[@]}"; do kill -9 "$pid" 2>/dev/null; done
    wait 2>/dev/null
    rest_unmount "$W"
    # What failed is left to be looked at; what soak runs keep, too.
    case $code in
    0 | 77) rm -rf --one-file-system "$W" ;;
    75 | 130) ;;
    *) say "left for you: $W" >&2 ;;
    esac
    exit "$code"
}

volume() {
    rm -f "$IMG"
    "$NENRIN" mkfs --sparse --size "$1" "$IMG" >/dev/null
}

mount_options() {
    local options=${1:-}
    is_root && options="dev,suid,allow_other${options:+,$options}"
    printf %s "$options"
}

up() {
    local options
    options=$(mount_options "${1:-}")
    "$NENRIN" mount ${options:+-o "$options"} --log "$LOG" "$IMG" "$MNT"
}

down() { "$NENRIN" umount "$MNT"; }
again() { down; up "$@"; }

daemon_pid() { "$NENRIN" info --json "$IMG" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p'; }

# info's number of that name.
counter() { "$NENRIN" info --json "$IMG" | sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" | head -n 1; }

cut() {
    case "${1:-}" in -*) command cut "$@"; return ;; esac
    kill -9 "$DAEMON"
    while kill -0 "$DAEMON" 2>/dev/null; do sleep 0.01; done
}

memory_mib() { awk -v key="$1:" '$1 == key { printf "%d", $2 / 1024 }' "/proc/$(daemon_pid)/status"; }

checked() {
    local code=0
    "$NENRIN" check --data "$IMG" >"$W/check.out" 2>&1 || code=$?
    [ $code = 0 ] || { cat "$W/check.out" >&2; wrong "nenrin check ended with $code"; }
}

# with_helpers COMMAND...: where mount(8) finds our helpers, in a mount namespace with a /sbin of its own.
with_helpers() {
    mkdir -p "$W/sbin.up" "$W/sbin.work"
    unshare --mount --propagation private bash -euc '
        place=$1 sbin=$(readlink -f /sbin)
        shift
        mount -t overlay -o "lowerdir=$sbin,upperdir=$place/sbin.up,workdir=$place/sbin.work" none "$sbin"
        DESTDIR= PREFIX=$place/usr RULES=$place/rules scripts/install.sh >/dev/null
        exec "$@"' helpers "$W" "$@"
}

# Everything that find, getfattr and getfacl can tell about a tree, sorted. The size and
# block count of a directory are its file system's own affair.
listing() {
    ( cd "$1" && {
        find . -mindepth 1 \( -type d -printf '%n %m %U %G dir %y %T@ %p %l\0' -o -printf '%n %m %U %G %s %y %T@ %p %l\0' \) | sort -z | tr '\0' '\n'
        # Hard links: the names of one inode side by side.
        find . -type f -links +1 -printf '%i %p\0' | sort -z | awk -v RS='\0' '{ i = $1; sub(/^[0-9]+ /, ""); a[i] = a[i] " = " $0 } END { for (i in a) print "links" a[i] }' | sort
        find . -mindepth 1 \( -type c -o -type b \) -print0 | sort -z | xargs -0r stat -c 'device %t:%T %n'
        if command -v getfattr >/dev/null; then find . -mindepth 1 -print0 | sort -z | xargs -0r getfattr -h -d -m '^(user|trusted|security)\.' -e hex 2>/dev/null; fi
        if command -v getfacl >/dev/null; then find . -mindepth 1 ! -type l -print0 | sort -z | xargs -0r getfacl -n -p -s 2>/dev/null; fi
    } )
}

# same A B: byte for byte and attribute for attribute.
# rsync compares whole seconds unless it is told -1.
same() {
    local flags="-aHAXSnic --modify-window=-1"
    is_root || flags="-aHXSnic --modify-window=-1"
    listing "$1" >"$W/listing.a"
    listing "$2" >"$W/listing.b"
    cmp -s "$W/listing.a" "$W/listing.b" || { diff "$W/listing.a" "$W/listing.b" | head -n 20 >&2; wrong "listings differ: $1 $2"; }
    rsync $flags --delete --checksum "$1/" "$2/" >"$W/rsync.out" 2>&1 || { head "$W/rsync.out" >&2; wrong "rsync $1 $2"; }
    rsync $flags --delete --checksum "$2/" "$1/" >>"$W/rsync.out" 2>&1 || { head "$W/rsync.out" >&2; wrong "rsync $2 $1"; }
    # The times of the roots themselves are not compared.
    ! grep -v '^\.d..t...... \./$' "$W/rsync.out" >"$W/rsync.diff" || { head "$W/rsync.diff" >&2; wrong "rsync finds differences: $1 $2"; }
}
