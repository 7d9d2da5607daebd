#!/usr/bin/env bash
# undo-guide.sh: runs the steps of docs/UNDO.md on a volume of its own and prints each with what it says,
# as the guide shows it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
PATH="$(release):$PATH"
dir=$(mktemp -d)
export HOME=$dir
cleanup() { nenrin umount "$HOME/work" >/dev/null 2>&1 || true; rm -rf "$dir"; }
trap cleanup EXIT
trap 'exit 130' INT TERM
cd "$HOME"
nenrin mkfs --size 256M work.img >/dev/null
mkdir work
nenrin mount -o checkpoint=0 work.img work >/dev/null

# What a volume does by itself every few seconds of work; asked for here, so that the numbers are the same each time.
pass() { nenrin checkpoint create work >/dev/null; }
step() {
    printf '    $ %s\n' "$1"
    # One that is refused says so, which is shown.
    { bash -c "$1" 2>&1 || true; } | sed 's/^/    /; s/ *$//'
}
text() { printf '\n%s\n\n' "$*"; }

mkdir -p work/thesis/figures
printf 'Chapter 1\n\nIt was a dark and stormy night.\n' >work/thesis/chapter1.txt
printf 'Chapter 2\n' >work/thesis/chapter2.txt
head -c 300000 /dev/urandom >work/thesis/figures/rings.png
pass
printf 'Chapter 1\n\nIt was a bright cold day in April.\nThe clocks were striking thirteen.\n' >work/thesis/chapter1.txt
pass
text "You saved over \`chapter1.txt\`. What was in it before?"
step "nenrin history work/thesis/chapter1.txt"
text "Each line is a state that can be gone back to. Look at the first one, in the directory that is never listed, or compare:"
first=$(nenrin history --json work/thesis/chapter1.txt | sed -n 's/^ *"cno": \([0-9]*\),$/\1/p' | head -1)
step "cat work/.nenrin/at/$first/thesis/chapter1.txt"
step "nenrin diff --content work/thesis $first"
text "Bring it back beside the new one, or in its place. What is replaced goes to a checkpoint first, so this can be undone, too (on a full volume: see below):"
step "nenrin restore work/thesis/chapter1.txt --at $first --to work/thesis/chapter1.old.txt"
step "nenrin restore work/thesis/chapter1.txt --at $first --force"
printf '\n%s\n' "A name that is restored is a file of its own. Where the old file has other names (hard links) these keep what they have, and it is told. \`--in-place\` instead of \`--force\` writes to the file itself,
as long as it is the same file still: all its names have what it was then."
rm work/thesis/chapter1.old.txt
pass
rm -r work/thesis/figures
pass
sleep 5
text "You removed a directory. What is missing here, and which state had it last?"
step "nenrin restore --list-deleted work/thesis"
last=$(nenrin restore --json --list-deleted work/thesis | sed -n '/"figures"/,/}/s/^ *"cno": \([0-9]*\),$/\1/p')
step "nenrin restore work/thesis/figures --at $last"
step "ls work/thesis work/thesis/figures"
text "Where a state was made while \`rm\` was at work, half is gone in it: then the last column names one shortly before that has more. \`chmod -R\`, \`setfacl -b\` and \`chown -R\` are undone
like the rest: what comes back has the permissions that it had.

A state can be said in several ways: by its number, by time, by the name of a snapshot you made:"
step "nenrin snapshot create work before-review"
step "nenrin diff work '5 seconds ago'"
step "ls work/.nenrin/at/before-review"
text "## The opposite

\`nenrin forget PATH\` is for what must not be brought back. It takes what PATH ever stood for out of every checkpoint and out of snapshots, with all that was ever
below it, and wipes the devices. What is still there it leaves alone; it lists what goes and asks first, unless told \`--yes\`:"
step "nenrin forget --yes work/thesis/chapter2.txt"
step "rm work/thesis/chapter2.txt"
step "nenrin forget --yes work/thesis/chapter2.txt"
step "nenrin history work/thesis/chapter2.txt"
