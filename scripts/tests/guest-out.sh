#!/usr/bin/env bash
# What somebody has in the directory for the guest's results stays. (Without a guest: what stands for QEMU writes a result.)
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/guest" "$dir/mine"
touch "$dir/guest/base.cpio" "$dir/guest/vmlinuz" "$dir/guest/disk-8M.img" "$dir/job"
printf '#!/bin/sh\nfor word; do case $word in local,path=*) out=${word#local,path=}; out=${out%%%%,*} ;; esac; done\necho 0 >"$out/code"\n' >"$dir/bin/qemu-system-x86_64"
cp "$dir/bin/qemu-system-x86_64" "$dir/bin/nenrin"
chmod +x "$dir"/bin/*
guest() { PATH=$dir/bin:$PATH NENRIN=$dir/bin/nenrin scripts/guest/run.sh "$dir/guest" "$1" 8M "$dir/job"; }

echo mine >"$dir/mine/out"
! guest "$dir/mine" 2>"$dir/said" || fail "a directory of somebody's was taken"
grep -q 'not empty, and not from an earlier run' "$dir/said" || fail "it does not say why: $(cat "$dir/said")"
[ "$(cat "$dir/mine/out")" = mine ] || fail "what somebody had there is gone"
guest "$dir/new"
echo mine >"$dir/new/kept"
echo old >"$dir/new/err"
guest "$dir/new"
[ "$(cat "$dir/new/kept")" = mine ] || fail "what was put beside the results is gone"
[ ! -e "$dir/new/err" ] || fail "what an earlier run said is still there"
