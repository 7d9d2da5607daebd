#!/usr/bin/env bash
# guest.sh [KERNEL_PACKAGE]: nenrin under a stock kernel of Debian (default: the one that linux-image-amd64
# stands for; Debian 12: 6.1) in QEMU without hardware help: mounting, everyday POSIX work, both cache
# modes, the past, SIGKILL, unmounting. Packages are unpacked, not installed. Some minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
PATH="$PATH:/usr/sbin:/sbin"
for need in qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod modprobe:kmod apt-get:apt dpkg-deb:dpkg; do
    command -v "${need%%:*}" >/dev/null || { say "skipped: ${need%%:*} is missing (apt-get install --no-install-recommends ${need#*:})"; exit 77; }
done
program=$(release)/nenrin
[ -x "$program" ] || fail "$program is missing: make build"
dir=${GUEST_DIR:-${SOAK_STATE:-/var/tmp/nenrin-guest}}
mkdir -p "$dir/debs"
dir=$(cd "$dir" && pwd -P)
package=${1:-$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')}
[ -n "$package" ] || { say "skipped: no linux-image-amd64 to be had from apt"; exit 77; }
version=${package#linux-image-}

unpack() {
    [ -e "$dir/$version.done" ] && return
    ( cd "$dir/debs" && apt-get -qq -o APT::Sandbox::User= download "$package" busybox-static ) >"$dir/log" 2>&1 ||
        { tail -n 2 "$dir/log"; say "skipped: $package or busybox-static cannot be had"; exit 77; }
    rm -rf "${dir:?}/kernel" "$dir/busybox"
    for deb in "$dir"/debs/*.deb; do
        case $deb in */busybox*) dpkg-deb -x "$deb" "$dir/busybox" ;; */"${package}"_*) dpkg-deb -x "$deb" "$dir/kernel" ;; esac
    done
    depmod -b "$dir/kernel" "$version"
    touch "$dir/$version.done"
}

# with_libraries PROGRAM: into the root, with what it is linked to.
with_libraries() {
    local library
    cp "$1" "$root/bin/"
    { ldd "$1" || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

unpack
root=$dir/root
rm -rf "${root:?}"
mkdir -p "$root"/{bin,sbin,proc,sys,dev,run,tmp,mods,mnt,was,etc,root,usr/bin,usr/sbin}
cp "$(find "$dir/busybox" -path '*/bin/busybox' -type f | head -n 1)" "$root/bin/busybox"
with_libraries "$program"
fsx=
if [ -x target/tools/bin/fsx ]; then with_libraries target/tools/bin/fsx; fsx=1; fi
for module in virtio_pci virtio_blk crc32c_generic crc32c_intel fuse; do
    modprobe -C /dev/null -d "$dir/kernel" -S "$version" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/mods/"
    basename "$file"
done >"$root/mods/order"
ln -s /proc/mounts "$root/etc/mtab"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
while read -r m; do insmod "/mods/$m" 2>/dev/null; done </mods/order
i=0; until [ -b /dev/vda ] || [ $i -gt 100 ]; do sleep 0.1; i=$((i + 1)); done
export HOME=/root LC_ALL=C.UTF-8
sh -eu /work >/dev/console 2>&1 && echo "guest: all is well" >/dev/console || echo "guest: FAILED" >/dev/console
dmesg | grep -iE 'bug:|oops|hung task|warning: cpu' >/dev/console
poweroff -f
INIT
chmod +x "$root/init"
cat >"$root/work" <<'WORK'
say() { echo "guest: $*"; }
say "Linux $(uname -r)"
nenrin mkfs --force /dev/vda
pid() { nenrin info --json /dev/vda | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p'; }
for cache in writethrough writeback; do
    nenrin mount -o cache=$cache --log /dev/console /dev/vda /mnt
    grep ' /mnt fuse.nenrin ' /proc/mounts
    d=/mnt/$cache; mkdir "$d"; cd "$d"
    # Files, links, names, times, modes.
    seq 100000 >seq; sum=$(md5sum <seq)
    dd if=/dev/urandom of=random bs=1M count=24 conv=fsync 2>/dev/null; random=$(md5sum <random)
    ln seq hard; ln -s seq soft; mkfifo fifo; mknod null c 1 3
    [ "$(stat -c %h seq)" = 2 ] && [ "$(readlink soft)" = seq ] && [ -p fifo ] && [ -c null ]
    mkdir -p a/b/c; mv a/b/c a/moved; rmdir a/b; [ -d a/moved ]
    ! rmdir a 2>/dev/null
    long=$(seq 1000 | tr -d '\n' | cut -c1-255); echo x >"$long"; ! echo x >"${long}y" 2>/dev/null
    chmod 4751 hard; [ "$(stat -c %a seq)" = 4751 ]; chown 7:8 seq; [ "$(stat -c %u:%g seq)" = 7:8 ]
    touch -d '2001-02-03 04:05:06' seq; [ "$(stat -c %Y seq)" = 981173106 ]
    truncate -s 20G sparse; echo end | dd of=sparse bs=1 seek=21474836000 conv=notrunc 2>/dev/null
    [ "$(stat -c %s sparse)" = 21474836480 ] && [ "$(stat -c %b sparse)" -lt 100 ]
    # Open, and without a name; replaced by rename.
    exec 3<seq; rm seq; [ "$(md5sum <&3)" = "$sum" ]; exec 3<&-
    echo old >r; echo new >r.new; sync; mv r.new r; [ "$(cat r)" = new ]
    i=0; mkdir many; while [ $i -lt 600 ]; do echo $i >many/$i; i=$((i + 1)); done; [ "$(ls many | wc -l)" = 600 ]
    rm many/*7; [ "$(ls many | wc -l)" = 540 ]
    df /mnt >/dev/null
    if [ -x /bin/fsx ]; then fsx -N 1500 -S 7 "$d/fsx" >/tmp/fsx 2>&1 || { tail -n 20 /tmp/fsx; false; }; say "$cache: fsx"; fi
    # The past, beside the live mount.
    cd /; nenrin snapshot create /mnt $cache
    echo changed >"$d/hard"; rm "$d/random"
    nenrin mount -o cp="$(nenrin checkpoint list --json /mnt | grep '"cno"' | tail -n 1 | tr -dc 0-9)" /dev/vda /was
    [ "$(md5sum </was/$cache/hard)" = "$sum" ] && [ "$(md5sum </was/$cache/random)" = "$random" ]
    ! touch /was/x 2>/dev/null
    nenrin umount /was 2>/dev/null
    # SIGKILL: what was synced is there.
    echo synced >"$d/synced"; sync "$d/synced" 2>/dev/null || fsync "$d/synced"
    kill -9 "$(pid)"; sleep 1
    nenrin mount -o cache=$cache /dev/vda /mnt
    [ "$(cat "$d/synced")" = synced ] && [ "$(ls "$d/many" | wc -l)" = 540 ]
    nenrin umount /mnt
    ! grep -q ' /mnt ' /proc/mounts
    nenrin check --data /dev/vda
    say "$cache: as it should be"
done
nenrin mount -o ro /dev/vda /mnt; [ -e /mnt/writeback/synced ]; ! touch /mnt/x 2>/dev/null; nenrin umount /mnt
WORK
( cd "$root" && find . | cpio -o -H newc --quiet ) >"$dir/initrd"
rm -f "$dir/disk"
truncate -s 1G "$dir/disk"
begin=$SECONDS
timeout "${GUEST_SECONDS:-1200}" qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 1024m -kernel "$dir"/kernel/boot/vmlinuz-"$version" -initrd "$dir/initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off" -display none -serial "file:$dir/console" -monitor none -no-reboot -nodefaults \
    -drive "file=$dir/disk,if=none,id=d0,format=raw,cache=writeback" -device virtio-blk-pci,drive=d0 </dev/null >"$dir/qemu.log" 2>&1 || true
rm -f "$dir/disk" "$dir/initrd"
grep -a '^guest: ' "$dir/console" | tr -d '\r' | sed 's/^/   /' || true
if ! grep -qa '^guest: all is well' "$dir/console"; then
    tail -n 25 "$dir/console" "$dir/qemu.log" >&2
    exit 1
fi
say "   ${fsx:+fsx, }$package: $((SECONDS - begin)) s"
