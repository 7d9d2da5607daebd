#!/usr/bin/env bash
# run.sh DIR OUT GIB JOB: boots the guest of setup.sh with a disk of GIB (as 2, or 512M) at /dev/vda,
# has it run the shell script JOB, and leaves in OUT what the job wrote to /host:
# out, err, code, dmesg and its own files. Emulated, it is slow: times mean little,
# counts and bytes are what they are. GUEST_ACCEL=kvm where that works. GUEST_DISKS=N: so many
# disks of that size, written in full, GUEST_LIMIT=OPTIONS: QEMU's throttle for each of them, as
# throttling.iops-total=200; GUEST_FILES: more files for the job, found in /host;
# GUEST_CPUS=N processors (2). OUT has to be new, empty, or from an earlier run, of which it
# deletes what every run has.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
[ $# = 4 ] || fail "run.sh: DIR OUT GIB JOB are needed"
dir=$(cd "$1" && pwd) gib=$3 job=$4
case $gib in *M) mib=${gib%M} ;; *) mib=$((gib * 1024)) ;; esac
nenrin=${NENRIN:-$(release)/nenrin}
[ -e "$dir/base.cpio" ] || fail "run.sh: scripts/guest/setup.sh $dir comes first"
[ -x "$nenrin" ] || fail "run.sh: $nenrin is missing: make build"
mkdir -p "$2"
out=$(cd "$2" && pwd)
# What somebody has there stays: it is told by the mark of an earlier run, and only what those make goes.
mark=.nenrin-guest
[ -e "$out/$mark" ] || [ -z "$(ls -A "$out")" ] || fail "run.sh: $out is not empty, and not from an earlier run: name another directory"
: >"$out/$mark"
for name in nenrin job console qemu started out err code dmesg; do rm -f "$out/$name"; done
cp "$nenrin" "$out/nenrin"
cp "$job" "$out/job"
# shellcheck disable=SC2086
[ -z "${GUEST_FILES:-}" ] || cp $GUEST_FILES "$out/"

# The guest has only what it was given: everything nenrin is linked with must be there.
disks=()
for n in $(seq 0 $((${GUEST_DISKS:-1} - 1))); do
    disk=$dir/disk-$gib.img
    make="fallocate -l ${mib}M $disk.new"
    if [ -n "${GUEST_DISKS:-}" ]; then
        disk=$dir/disk-$gib-$n.img
        make="dd if=/dev/zero of=$disk.new bs=4M count=$((mib / 4)) oflag=direct status=none"
    fi
    [ -e "$disk" ] || { $make && mv "$disk.new" "$disk"; } || { rm -f "$disk.new"; fail "run.sh: no room for a disk of $mib MiB in $dir"; }
    disks+=(-drive "file=$disk,if=none,id=d$n,format=raw,cache=none,aio=native${GUEST_LIMIT:+,$GUEST_LIMIT}"
        -device "virtio-blk-pci,drive=d$n,num-queues=1,queue-size=256,write-zeroes=off")
done
# Not KVM by itself: within a virtual machine it may be there and hang.
accelerator=${GUEST_ACCEL:-tcg,thread=multi}
qemu-system-x86_64 -accel "$accelerator" -cpu max -smp "${GUEST_CPUS:-2}" -m 2048m -kernel "$dir/vmlinuz" -initrd "$dir/base.cpio" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off" -display none -serial "file:$out/console" -monitor none -no-reboot -nodefaults \
    "${disks[@]}" \
    -virtfs "local,path=$out,mount_tag=share,security_model=none" </dev/null >"$out/qemu" 2>&1 &
guest=$!
# Without its name in the table of mounts there is nothing to unmount here: it ends, and that is all.
trap 'kill $guest 2>/dev/null || true; wait $guest 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
end=$((SECONDS + ${GUEST_SECONDS:-5400}))
while kill -0 $guest 2>/dev/null; do
    sleep 1
    [ -e "$out/started" ] || [ $((end - SECONDS)) -gt $((${GUEST_SECONDS:-5400} - 300)) ] || fail "run.sh: the guest did not start; its console is in $out/console"
    # Emulated processors may lose each other when the host is too busy; they do not recover.
    ! grep -qsa 'soft lockup - CPU.* stuck for [0-9]\{3,\}s' "$out/console" || fail "run.sh: the guest hangs; try again when this machine is idle; its console is in $out/console"
    [ $SECONDS -lt $end ] || fail "run.sh: the guest did not end within ${GUEST_SECONDS:-5400} s; its console is in $out/console"
done
rm -f "$out/nenrin" "$out/started"
code=$(cat "$out/code" 2>/dev/null || true)
[ -n "$code" ] || { tail -n 10 "$out/console" "$out/qemu" >&2; fail "run.sh: the guest ended without a result"; }
[ "$code" = 0 ] || cat "$out/err" >&2
exit "$code"
