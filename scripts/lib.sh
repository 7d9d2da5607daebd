# Shared by the scripts: where cargo is, and how they speak. Sourced, not run.
# shellcheck shell=sh

RUST_MIN=85   # minor version of Rust 1.x, as rust-version in Cargo.toml

say() { printf '%s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

# known WORDS WORDS...: ends the script where one of the first is none of the others.
known() {
    given=$1
    shift
    for word in $given; do
        case " $* " in *" $word "*) ;; *) say "$(basename "$0"): no part '$word'; there are: $*" >&2; exit 2 ;; esac
    done
}

# Two jobs at most: the machines this is measured on have two cores.
export CARGO_BUILD_JOBS="${CARGO_BUILD_JOBS:-2}"

# Tests are built once, with the switches that the deliberate breaks need.
export TEST_FEATURES=nenrin-sim/breaks,nenrin-fuzz/breaks,nenrin/breaks

# The minor version of the given cargo; nothing when it does not run.
cargo_minor() {
    "$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p'
}

# Sets CARGO to one that is new enough. A distribution's may be too old while
# rustup's, which is not always in PATH, is not.
find_cargo() {
    found=
    for candidate in "${CARGO:-}" "$(command -v cargo || true)" "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" "$(sudo_user_cargo)"; do
        [ -n "$candidate" ] && [ -x "$candidate" ] || continue
        minor=$(with_rustup "$candidate" cargo_minor "$candidate")
        [ -n "$minor" ] || continue
        if [ "$minor" -ge "$RUST_MIN" ]; then
            CARGO=$candidate
            set_rustup "$candidate"
            PATH="$(dirname "$candidate"):$PATH"
            export CARGO PATH
            return 0
        fi
        found="1.$minor"
    done
    if [ -n "$found" ]; then
        say "Rust $found is too old, 1.$RUST_MIN is needed. One line to get it:" >&2
    else
        say "Rust 1.$RUST_MIN or newer is needed. One line to get it:" >&2
    fi
    fail "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
}

# Where cargo puts what it builds, which the environment or a configuration of cargo's may say. From the root of the repository.
target_directory() {
    built=$( (find_cargo && "$CARGO" metadata --no-deps --offline --format-version 1) 2>/dev/null | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    say "${built:-${CARGO_TARGET_DIR:-$PWD/target}}"
}

# Where build.sh notes in which directory the program is, when that is not the usual one: cargo tells of a build.target of its
# configuration only who builds.
RELEASE_NOTE=nenrin.release

# Where what is built for release is.
release() {
    target=$(target_directory)
    if [ -z "${CARGO_BUILD_TARGET:-}" ] && noted=$(cat "$target/$RELEASE_NOTE" 2>/dev/null) && [ -x "$noted/nenrin" ]; then
        say "$noted"
    else
        say "$target${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}/release"
    fi
}

# A word as a shell takes it.
quoted() {
    case $1 in
    *[!A-Za-z0-9/._+-]*) printf "'%s'\n" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;;
    *) say "$1" ;;
    esac
}

# Under sudo, the cargo of who called it.
sudo_user_cargo() {
    [ -n "${SUDO_USER:-}" ] || return 0
    say "$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin/cargo"
}

# rustup's cargo looks for its toolchains in the home of who runs it.
set_rustup() {
    [ "$1" = "$(sudo_user_cargo)" ] && [ -z "${RUSTUP_HOME:-}" ] || return 0
    RUSTUP_HOME="$(dirname "$(dirname "$(dirname "$1")")")/.rustup"
    export RUSTUP_HOME
}

with_rustup() {
    ( set_rustup "$1"; shift; "$@" )
}
