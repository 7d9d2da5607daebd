#!/usr/bin/env bash
# setup.sh DIR: makes DIR/vmlinuz and DIR/base.cpio, a small Debian guest that has
# the file systems this kernel may lack. Packages are downloaded with apt and
# unpacked in DIR; nothing but QEMU and cpio is installed here. As root, on Debian.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh
[ $# = 1 ] || fail "setup.sh: a directory is needed"
mkdir -p "$1"
dir=$(cd "$1" && pwd)
[ "$(id -u)" = 0 ] || fail "setup.sh: must be run as root (chroot is used to find libraries)"
[ -e "$dir/base.cpio" ] && [ "$dir/base.cpio" -nt scripts/guest/setup.sh ] && [ "$dir/base.cpio" -nt scripts/guest/init ] && exit 0

PATH="$PATH:/usr/sbin:/sbin"
need=
for pair in qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod; do
    command -v "${pair%%:*}" >/dev/null || need="$need ${pair##*:}"
done
if [ -n "$need" ]; then
    say "Installing$need"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $need </dev/null >"$dir/apt.log" 2>&1 ||
        { tail -n 3 "$dir/apt.log" >&2; fail "apt could not install$need; apt-get update, then again"; }
fi

tools="busybox-static fio e2fsprogs xfsprogs btrfs-progs nilfs-tools f2fs-tools exfatprogs jfsutils libgcc-s1"
programs="fio mke2fs mkfs.ext4 mkfs.xfs mkfs.btrfs mkfs.nilfs2 nilfs_cleanerd mkfs.f2fs mkfs.exfat mkfs.jfs"
modules="virtio_pci virtio_blk 9p 9pnet_virtio mq-deadline crc32c_generic crc32_generic libcrc32c crc32c_intel
    xxhash_generic blake2b_generic sha256_generic ext4 xfs btrfs nilfs2 f2fs exfat jfs fuse"
kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
[ -n "$kernel" ] || fail "apt knows no linux-image-amd64; this needs Debian, and perhaps apt-get update"
version=${kernel#linux-image-}

say "Downloading $kernel and the tools"
mkdir -p "$dir/debs/partial"
: >"$dir/empty-status"
# Against an empty list of what is installed, so that every library comes along.
options=(-qq -o Dir::State::status="$dir/empty-status" -o Dir::Cache::archives="$dir/debs" -o Debug::NoLocking=1
    -o APT::Install-Recommends=0 -o APT::Sandbox::User=root)
# shellcheck disable=SC2086
apt-get "${options[@]}" -y --download-only install $tools >"$dir/apt.log" 2>&1 || { tail -n 3 "$dir/apt.log" >&2; fail "apt could not download the tools; apt-get update, then again"; }
ls "$dir/debs/${kernel}"_*.deb >/dev/null 2>&1 || (cd "$dir/debs" && apt-get -qq -o APT::Sandbox::User=root download "$kernel" 2>/dev/null)

say "Unpacking"
root=$dir/root image=$dir/kernel
rm -rf "$root" "$image" "$dir/initramfs"
mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$image"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
for deb in "$dir"/debs/*.deb; do
    case "$(basename "$deb")" in
    "${kernel}"_*) dpkg-deb -x "$deb" "$image" ;;
    linux-image-*) ;;
    *) dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root" --exclude='./usr/share/*' ;;
    esac
done
cp "$image/boot/vmlinuz-$version" "$dir/vmlinuz"

ram=$dir/initramfs
mkdir -p "$ram"/{usr/bin,usr/sbin,usr/lib,usr/lib64,proc,sys,dev,host,etc,tmp,run,root,modules}
for d in bin sbin lib lib64; do ln -s "usr/$d" "$ram/$d"; done
cp "$root/bin/busybox" "$ram/bin/busybox"
for name in $("$ram/bin/busybox" --list); do
    case $name in busybox | mke2fs | mkfs* | init | linuxrc) ;; *) ln -sf busybox "$ram/bin/$name" ;; esac
done
# A program of the unpacked packages, with its libraries.
add() {
    local lib
    mkdir -p "$ram/$(dirname "$1")"
    cp -L "$root/$1" "$ram/$1"
    chroot "$root" /lib64/ld-linux-x86-64.so.2 --list "$1" | grep -o '/[^ ]*' | while read -r lib; do
        [ -e "$ram/$lib" ] || { mkdir -p "$ram/$(dirname "$lib")"; cp -L "$root/$lib" "$ram/$lib"; }
    done
}
for program in $programs; do
    for place in /usr/bin /usr/sbin; do
        { [ -e "$root$place/$program" ] || [ -L "$root$place/$program" ]; } || continue
        real=$(chroot "$root" /bin/busybox readlink -f "$place/$program")
        add "$real"
        [ "$real" = "$place/$program" ] || ln -sf "$real" "$ram$place/$program"
    done
    [ -e "$ram/usr/bin/$program" ] || [ -L "$ram/usr/sbin/$program" ] || [ -e "$ram/usr/sbin/$program" ] || fail "$program is not in the packages"
done
# What nenrin is linked with.
for lib in libc.so.6 libgcc_s.so.1 libm.so.6; do
    file=$(find "$root/usr/lib" "$root/usr/lib64" -name "$lib" | head -n 1)
    [ -z "$file" ] || { mkdir -p "$ram/$(dirname "${file#"$root"}")"; cp -L "$file" "$ram/${file#"$root"}"; }
done
cp -L "$root/lib64/ld-linux-x86-64.so.2" "$ram/lib64/"
[ ! -f "$root/etc/mke2fs.conf" ] || cp "$root/etc/mke2fs.conf" "$ram/etc/"
ln -s /proc/mounts "$ram/etc/mtab"
echo 'root:x:0:0:root:/root:/bin/sh' >"$ram/etc/passwd"
echo 'root:x:0:' >"$ram/etc/group"

# Only the modules needed, with the order in which they go in.
depmod -b "$image" "$version"
: >"$ram/modules/order"
for module in $modules; do
    modprobe -C /dev/null -d "$image" -S "$version" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }' |
        while read -r file; do
            name=$(basename "$file")
            [ -e "$ram/modules/$name" ] || { cp "$file" "$ram/modules/$name"; echo "$name" >>"$ram/modules/order"; }
        done || true
done
cp scripts/guest/init "$ram/init"
chmod +x "$ram/init"
(cd "$ram" && find . | cpio -o -H newc --quiet) >"$dir/base.cpio.new"
mv "$dir/base.cpio.new" "$dir/base.cpio"
rm -rf "$root" "$image" "$ram"
say "The guest is ready: $version"
