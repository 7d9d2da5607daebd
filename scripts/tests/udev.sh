#!/usr/bin/env bash
# The rule for udev: where make install puts it, that the program it asks answers as libblkid would, and, by udevadm without a
# daemon and in a /dev of its own, which properties and links devices get by it: with a strange label, one of two of a volume, a
# partition, with another file system, with something else made over a volume, with nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/work/lib.sh
tools=$PWD/target/tools/udev

# What udevadm says of a block device, as NAME=VALUE lines and what else it prints.
asked() { LD_LIBRARY_PATH=$tools${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$UDEVADM" test --action=add "/sys/class/block/${1#/dev/}" 2>&1; }
# has FILE LINE: the line is there, whatever is before it (versions of udevadm differ).
has() { grep -qE "(^|[[:space:]])$2\$" "$1" || { cat "$1" >&2; wrong "udevadm does not say: $2"; }; }
without() { ! grep -qE "$2" "$1" || { cat "$1" >&2; wrong "udevadm says: $2"; }; }

if [ "${1:-}" = inside ]; then
    W=$2 UDEVADM=$3
    shift 3
    read -r plain first second ext stale empty disk <<<"$*"
    nodes() { for l in "$@"; do mknod -m 600 "$l" b 7 "${l#/dev/loop}"; done; }
    mount -t tmpfs none /run
    mount -t tmpfs none /dev
    # A rule that is installed comes before this one.
    [ ! -d /etc/udev/rules.d ] || mount -t tmpfs none /etc/udev/rules.d
    for node in 'null c 1 3' 'zero c 1 5' 'urandom c 1 9' 'full c 1 7'; do
        # shellcheck disable=SC2086 # three words
        mknod -m 666 /dev/$node
    done
    nodes "$@"
    mkdir -p /run/udev/rules.d
    [ ! -d "$tools/rules" ] || cp "$tools/rules/60-persistent-storage.rules" /run/udev/rules.d/
    sed "s|@NENRIN@|$W/nenrin|" packaging/66-nenrin.rules >/run/udev/rules.d/66-nenrin.rules

    asked "$plain" >"$W/out"
    without "$W/out" '66-nenrin.*(nvalid|nknown|rror)'
    for line in ID_FS_TYPE=nenrin ID_FS_USAGE=filesystem "ID_FS_UUID=$(cat "$W/plain.uuid")" \
        'ID_FS_LABEL=B\S*ro_a_b_x' 'ID_FS_LABEL_ENC=B\S*ro\\x20a\\x2fb\\x24x'; do
        has "$W/out" "$line"
    done
    [ "/dev/$(basename "$(readlink "/dev/disk/by-uuid/$(cat "$W/plain.uuid")")")" = "$plain" ] || wrong "no link by UUID"
    [ "/dev/$(basename "$(readlink '/dev/disk/by-label/Büro\x20a\x2fb\x24x')")" = "$plain" ] || wrong "no link by label"
    # By these mount(8) finds it, as for fstab.
    [ "$(findfs "UUID=$(cat "$W/plain.uuid")")" = "$plain" ] || wrong "findfs UUID="
    [ "$(findfs 'LABEL=Büro a/b$x')" = "$plain" ] || wrong "findfs LABEL="

    for one in "$first" "$second"; do
        asked "$one" >"$W/out.${one#/dev/}"
        has "$W/out.${one#/dev/}" "ID_FS_UUID=$(cat "$W/pair.uuid")"
        grep -o 'ID_FS_UUID_SUB=.*' "$W/out.${one#/dev/}" | head -n 1
    done | sort -u >"$W/subs"
    [ "$(wc -l <"$W/subs")" = 2 ] || wrong "not two devices: $(cat "$W/subs")"
    [ -e /dev/disk/by-label/pair ] || wrong "no link to either of two devices"

    # A partition has from its disk that there is a partition table, by 60-persistent-storage, and is what it has itself.
    part=${disk}p1
    # shellcheck disable=SC2046 # two numbers
    mknod -m 600 "$part" b $(tr : ' ' <"/sys/class/block/${part#/dev/}/dev")
    asked "$disk" >"$W/out"
    has "$W/out" ID_PART_TABLE_TYPE=dos
    without "$W/out" 'nenrin probe --udev /dev|ID_FS_TYPE=nenrin'
    asked "$part" >"$W/out"
    has "$W/out" ID_PART_TABLE_TYPE=dos
    has "$W/out" ID_FS_TYPE=nenrin
    [ "/dev/$(basename "$(readlink "/dev/disk/by-uuid/$(cat "$W/part.uuid")")")" = "$part" ] || wrong "no link to a partition"
    [ "$(findfs "UUID=$(cat "$W/part.uuid")")" = "$part" ] || wrong "findfs UUID= of a partition"
    [ "$(findfs LABEL=part)" = "$part" ] || wrong "findfs LABEL= of a partition"

    # Where others have said what it is, or that nobody may look, the program is not even asked.
    asked "$ext" >"$W/out"
    without "$W/out" 'nenrin probe --udev /dev|nenrin$'
    has "$W/out" ID_FS_TYPE=ext4
    for one in "$stale" "$empty"; do
        asked "$one" >"$W/out"
        without "$W/out" 'ID_FS_TYPE=nenrin'
    done
    echo 'SUBSYSTEM=="block", ENV{DM_UDEV_DISABLE_OTHER_RULES_FLAG}="1"' >/run/udev/rules.d/61-flag.rules
    asked "$plain" >"$W/out"
    without "$W/out" 'ID_FS_TYPE=nenrin'
    rm /run/udev/rules.d/61-flag.rules
    # A program that is gone, or that fails, is nobody's trouble.
    mv "$W/nenrin" "$W/away"
    asked "$plain" >"$W/out"
    without "$W/out" 'ID_FS_TYPE=nenrin'
    ln -s /bin/false "$W/nenrin"
    asked "$plain" >"$W/out"
    without "$W/out" 'ID_FS_TYPE=nenrin'
    exit 0
fi

begin udev

# Where it is put, and that it is taken away, but for another one's.
for prefix in /usr /usr/local "/opt/o d d"; do
    rm -rf "$W/dest"
    DESTDIR=$W/dest PREFIX=$prefix scripts/install.sh >"$W/said"
    rule=$(cd "$W/dest" && find . -name 66-nenrin.rules)
    case $prefix in
    /usr) [ "$rule" = ./usr/lib/udev/rules.d/66-nenrin.rules ] || wrong "$prefix: $rule" ;;
    /usr/local) [ "$rule" = ./etc/udev/rules.d/66-nenrin.rules ] || wrong "$prefix: $rule" ;;
    *) [ -z "$rule" ] && grep -q "no rule for udev" "$W/said" || wrong "$prefix: $rule" ;;
    esac
    if [ -n "$rule" ]; then
        grep -qF "IMPORT{program}=\"$prefix/bin/nenrin probe --udev \$devnode\"" "$W/dest/$rule" || wrong "what it asks"
        grep -qF "TEST!=\"$prefix/bin/nenrin\"" "$W/dest/$rule" && ! grep -q @NENRIN@ "$W/dest/$rule" || wrong "what it tests"
        DESTDIR=$W/dest PREFIX=/usr/other RULES="$(dirname "${rule#.}")" scripts/install.sh --remove
        [ -e "$W/dest/$rule" ] || wrong "make uninstall took another one's rule away"
    fi
    DESTDIR=$W/dest PREFIX=$prefix scripts/install.sh --remove
    [ -z "$(cd "$W/dest" && find . ! -type d)" ] || wrong "left: $(cd "$W/dest" && find . ! -type d)"
done
# Every line has keys that there are, and every way out is there.
sed -e '/^#/d' -e '/^$/d' packaging/66-nenrin.rules | while read -r line; do
    left=$(printf %s "$line" | sed -E 's/(ACTION|SUBSYSTEM|KERNEL|TEST|ENV\{[A-Z_]+\}|GOTO|LABEL|IMPORT\{program\}|SYMLINK)(==|!=|\+=|=)"[^"]*"(, |$)//g')
    [ -z "$left" ] || wrong "the rule has: $left"
done
for label in $(sed -n 's/.*GOTO="\([a-z_]*\)".*/\1/p' packaging/66-nenrin.rules | sort -u); do
    grep -q "^LABEL=\"$label\"" packaging/66-nenrin.rules || wrong "no way out: $label"
done
figure "places of the rule" 2

# What it asks: the program answers as libblkid does, which knows other file systems.
need mkfs.ext4 blkid
count=0
for label in backup 'my disk' ' a  b ' 'Büro' '年輪' 'a\b"c' '$(x)%k' 'a#+-.:=@_9' "it's;"; do
    rm -f "$W/one.img" "$W/other.img"
    "$NENRIN" mkfs --sparse --size 64M --label "$label" "$W/one.img" >/dev/null
    truncate -s 16M "$W/other.img"
    mkfs.ext4 -q -L "$label" "$W/other.img"
    ours=$("$NENRIN" probe --udev "$W/one.img" | grep ^ID_FS_LABEL_ENC=)
    theirs=$(blkid -p -o udev "$W/other.img" | grep ^ID_FS_LABEL_ENC=)
    # Of a label that ends in spaces libblkid has cut them off before.
    theirs=${theirs}$(printf %s "$label" | sed -n 's/.*[^ ]\( *\)$/\1/p' | sed 's/ /\\x20/g')
    [ "$ours" = "$theirs" ] || wrong "'$label': $ours, libblkid has $theirs"
    count=$((count + 1))
done
figure "labels encoded as by libblkid" "$count"
code=0
"$NENRIN" probe --udev "$W/other.img" >"$W/out" 2>&1 || code=$?
[ "$code $(wc -c <"$W/out")" = "2 0" ] || wrong "of ext4: $code, $(cat "$W/out")"

UDEVADM=$(PATH="$PATH:/usr/sbin:/sbin" command -v udevadm || true)
[ -n "$UDEVADM" ] || UDEVADM=$tools/udevadm
[ -x "$UDEVADM" ] || { say "   skipped: udevadm is missing"; exit 0; }
if "$UDEVADM" verify --help >/dev/null 2>&1; then
    sed "s|@NENRIN@|$NENRIN|" packaging/66-nenrin.rules >"$W/66-nenrin.rules"
    "$UDEVADM" verify --no-style "$W/66-nenrin.rules" >"$W/out" 2>&1 || { cat "$W/out" >&2; wrong "udevadm verify"; }
fi
is_root || { say "   skipped: udevadm test needs root"; exit 0; }
need losetup partx unshare findfs
LOOPS=()
trap 'code=$?; set +e; trap - ERR; partx -d "${LOOPS[6]:-none}" 2>/dev/null; for l in "${LOOPS[@]}"; do losetup --detach "$l"; done; (exit $code); finish' EXIT
for name in plain first second ext stale empty disk; do
    truncate -s 64M "$W/$name.raw"
    [ $name != disk ] || truncate -s 66M "$W/$name.raw"
    LOOP=$(losetup --find --show "$W/$name.raw") || skip "losetup does not work here"
    LOOPS+=("$LOOP")
done
uuid() { sed -n 's/^ *"uuid": "\(.*\)",*$/\1/p'; }
"$NENRIN" mkfs --json --label 'Büro a/b$x' "${LOOPS[0]}" | uuid >"$W/plain.uuid"
"$NENRIN" mkfs --json --label pair "${LOOPS[1]}" "${LOOPS[2]}" | uuid >"$W/pair.uuid"
mkfs.ext4 -q "${LOOPS[3]}"
"$NENRIN" mkfs --label stale "${LOOPS[4]}" >/dev/null
printf LUKS | dd of="${LOOPS[4]}" conv=notrunc status=none
printf '\xba\xbe\0\1' | dd of="${LOOPS[4]}" bs=1 seek=4 conv=notrunc status=none
# A disk on which there was a volume, with a partition table now, and a volume on its first partition.
"$NENRIN" mkfs --label old "${LOOPS[6]}" >/dev/null
"$NENRIN" mkfs --json --sparse --size 64M --label part "$W/part.img" | uuid >"$W/part.uuid"
dd if="$W/part.img" of="${LOOPS[6]}" bs=1M seek=1 conv=notrunc status=none
printf '\0\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x02\0' | dd of="${LOOPS[6]}" bs=1 seek=446 conv=notrunc status=none
printf '\x55\xaa' | dd of="${LOOPS[6]}" bs=1 seek=510 conv=notrunc status=none
partx -a "${LOOPS[6]}"
cp "$NENRIN" "$W/nenrin"
unshare --mount --propagation private "$0" inside "$W" "$UDEVADM" "${LOOPS[@]}"
figure "devices that udev was asked about" 8
