#!/usr/bin/env bash
# fresh.sh [STEP...]: the two commands of README.md on machines that have nothing yet: Debian 12 and
# Ubuntu 24.04, made with debootstrap, in namespaces of their own. Needs root, debootstrap and
# a rustup toolchain, which is lent to them read-only.
#   steps: none old root user test-root test-user; each is done once and then remembered.
#   FRESH="bookworm noble" chooses the distributions, FRESH_DIR where they lie.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
source=$PWD
[ "$(id -u)" = 0 ] || { say "skipped: needs root"; exit 77; }
PATH="$PATH:/usr/sbin:/sbin"
command -v debootstrap >/dev/null || { say "skipped: debootstrap is missing (apt-get install debootstrap)"; exit 77; }
find_cargo
rustup=${RUSTUP_HOME:-$HOME/.rustup} cargo=${CARGO_HOME:-$HOME/.cargo}
[ -d "$rustup/toolchains" ] || { say "skipped: no toolchain of rustup to lend"; exit 77; }
dir=${FRESH_DIR:-${SOAK_STATE:-/var/tmp/nenrin-fresh}}
mkdir -p "$dir"
end=$((SECONDS + ${SOAK_SECONDS:-86400}))
export rustup cargo

make_root() {
    local name=$1 mirror=$2 script=$3
    shift 3
    [ -e "$dir/$name/made" ] && return
    rm -rf --one-file-system "${dir:?}/$name"
    mkdir -p "$dir/$name"
    say "   debootstrap $name"
    if ! debootstrap --variant=minbase "$@" "$name" "$dir/$name/root" "$mirror" "$script" >"$dir/$name/log" 2>&1; then
        tail -n 3 "$dir/$name/log"
        return 1
    fi
    # What README.md takes for granted, and what the first boot of an installed system makes.
    cp /etc/resolv.conf "$dir/$name/root/etc/"
    ln -sf ../proc/self/mounts "$dir/$name/root/etc/mtab"
    inside "$name" root 'apt-get update -qq && apt-get install -qq -y --no-install-recommends make git ca-certificates && useradd -m -s /bin/bash someone' \
        >>"$dir/$name/log" 2>&1 || { tail -n 3 "$dir/$name/log"; return 1; }
    touch "$dir/$name/made"
}

# inside NAME USER COMMANDS: with its own mounts and processes, which end with it.
# RUST=1 lends the toolchain.
inside() {
    unshare --mount --pid --fork --kill-child --propagation private -- bash -euc '
        root=$1 user=$2 commands=$3
        home=/root
        [ "$user" = root ] || home=/home/$user
        mount --bind /dev "$root/dev"
        # As everywhere that udev runs: every user may open it.
        [ -c "$root/fuse" ] || mknod -m 666 "$root/fuse" c 10 229
        mount --bind "$root/fuse" "$root/dev/fuse"
        mount -t tmpfs -o mode=1777 none "$root/dev/shm"
        mount -t proc none "$root/proc"
        mount -t sysfs none "$root/sys"
        if [ -n "${RUST:-}" ]; then
            for part in rustup cargo/bin cargo/registry; do
                from=$rustup
                case $part in cargo/*) from=$cargo/${part#cargo/} ;; esac
                [ -d "$from" ] || continue
                mkdir -p "$root$home/.$part"
                # cargo writes into its registry: there into memory.
                if [ "$part" = cargo/registry ]; then
                    mkdir -p "$root/lent"
                    mount -t tmpfs none "$root/lent"
                    mkdir "$root/lent/upper" "$root/lent/work"
                    mount -t overlay -o "lowerdir=$from,upperdir=$root/lent/upper,workdir=$root/lent/work" none "$root$home/.$part"
                else
                    mount --bind "$from" "$root$home/.$part"
                    mount -o remount,bind,ro "$root$home/.$part"
                fi
            done
            chroot "$root" chown "$user:" "$home/.cargo"
            [ ! -d "$root/lent/upper" ] || chroot "$root" chown -R "$user:" "$home/.cargo/registry"
        fi
        # A root of its own, as every machine has.
        mount --rbind "$root" "$root"
        cd "$root"
        mkdir -p old-root
        pivot_root . old-root
        umount -l /old-root
        cd /
        exec setpriv --reuid "$user" --regid "$user" --init-groups env -i HOME="$home" USER="$user" LOGNAME="$user" \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 bash -c "cd; $commands" </dev/null
    ' inside "$dir/$1/root" "$2" "$3"
}

wrong() { say "WRONG: $name, $step: $*" >&2; sed 's/^/   | /' "$dir/$name/out" | tail -n 40 >&2; exit 1; }
has() { grep -q -- "$1" "$dir/$name/out" || wrong "the output lacks: $1"; }
# clone USER: the tree as it was committed.
clone() {
    inside "$name" "$1" 'rm -rf nenrin' >/dev/null 2>&1
    local home=/root
    [ "$1" = root ] || home=/home/$1
    mkdir -p "$dir/$name/root$home"
    git clone -q --no-hardlinks "$source" "$dir/$name/root$home/nenrin"
    inside "$name" root "chown -R $1: $home/nenrin"
}
# The five lines of make mount, all of it twice.
first_steps='
    cd nenrin
    make mount >said || { cat said; exit 1; }
    cat said
    sed -n "s/^    //p" said >tries
    [ "$(wc -l <tries)" = 5 ] || exit 1
    make mount >/dev/null
    bash -eu tries || exit 1
    make mount && [ "$(cat mnt/note)" = bye ] && make umount && make umount || exit 1
    [ ! -e mnt ] && [ -e nenrin.img ] && [ -z "$(git status --porcelain | grep -v "said$\|tries$")" ] && echo all is well'

step_none() {
    clone someone
    ! inside "$name" someone 'cd nenrin && make mount' >"$dir/$name/out" 2>&1 || wrong "make mount works without Rust"
    has 'sudo apt-get update && sudo apt-get install -y --no-install-recommends .*gcc.*fuse3'
    has 'Rust 1.85 or newer is needed'
    has 'https://sh.rustup.rs'
    [ "$(grep -c '^    ' "$dir/$name/out")" = 2 ] || wrong "not one line for each thing that is missing"
    clone root
    ! inside "$name" root 'cd nenrin && make mount' >"$dir/$name/out" 2>&1 || wrong "make mount works without Rust"
    has 'Installing gcc'
    has 'https://sh.rustup.rs'
    ! inside "$name" root 'cd nenrin && make test' >"$dir/$name/out" 2>&1 || wrong "make test works without Rust"
    has 'https://sh.rustup.rs'
}

step_old() {
    inside "$name" root 'apt-get install -qq -y --no-install-recommends cargo rustc' >"$dir/$name/out" 2>&1 || wrong "no cargo"
    ! inside "$name" root 'cd nenrin && make mount' >"$dir/$name/out" 2>&1 || wrong "make mount works with an old Rust"
    has 'Rust 1\.[0-9]* is too old, 1.85 is needed'
    has 'https://sh.rustup.rs'
}

step_root() {
    clone root
    RUST=1 inside "$name" root "$first_steps" >"$dir/$name/out" 2>&1 || wrong "make mount"
    has '^hello$'
    has 'all is well'
}

step_user() {
    clone someone
    RUST=1 inside "$name" someone "$first_steps" >"$dir/$name/out" 2>&1 || wrong "make mount"
    has '^hello$'
    has 'all is well'
}

# refresh USER: the same tree with what was committed since; what is built there stays.
refresh() {
    local home=/root
    [ "$1" = root ] || home=/home/$1
    local there=$dir/$name/root$home/nenrin
    [ -d "$there" ] || { clone "$1"; return; }
    git -c safe.directory='*' -C "$there" fetch -q "$source" HEAD
    git -c safe.directory='*' -C "$there" reset -q --hard FETCH_HEAD
    inside "$name" root "chown -R $1: $home/nenrin"
}

step_test-root() {
    refresh root
    RUST=1 inside "$name" root 'cd nenrin && make test' >"$dir/$name/out" 2>&1 || wrong "make test"
    has '^\(all passed\|[0-9]* passed,.*skipped\)'
    grep -E ' (ok|skipped) +[0-9]+ s$|^together|^(all|[0-9]+) passed' "$dir/$name/out"
}

step_test-user() {
    refresh someone
    RUST=1 inside "$name" someone 'cd nenrin && make test' >"$dir/$name/out" 2>&1 || wrong "make test"
    has '^\(all passed\|[0-9]* passed,.*skipped\)'
    grep -E ' (ok|skipped) +[0-9]+ s$|^together|^(all|[0-9]+) passed' "$dir/$name/out"
}

[ $# -gt 0 ] || set -- none old root user test-root test-user
for name in ${FRESH:-bookworm noble}; do
    case $name in
    bookworm) make_root bookworm http://deb.debian.org/debian bookworm || { say "skipped: no Debian 12 to be had"; exit 77; } ;;
    noble)
        keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
        # It is thrown away; without Ubuntu's keys nothing can say who signed it.
        make_root noble http://archive.ubuntu.com/ubuntu gutsy --components=main,universe \
            "$([ -e $keys ] && echo --keyring=$keys || echo --no-check-gpg)" || { say "skipped: no Ubuntu 24.04 to be had"; exit 77; } ;;
    *) fail "fresh.sh: bookworm or noble, not '$name'" ;;
    esac
    for step in "$@"; do
        [ -e "$dir/$name/done.$step" ] && continue
        [ $SECONDS -lt $end ] || exit 75
        begin=$SECONDS
        "step_$step"
        say "   $name, $step: as it should be, $((SECONDS - begin)) s"
        touch "$dir/$name/done.$step"
    done
done
