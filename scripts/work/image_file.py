#!/usr/bin/env python3
"""A sync in an image file never makes the host file system commit its journal, since mkfs has written the image whole: requests counted on a loop
device with ext4 that has nothing else to do, beside an image with holes (mkfs --sparse), where each sync does.

image_file.py DIR   as root; needs 1 GiB in DIR; NENRIN is the program. Nothing stays. Fails where a sync costs more than one write and one flush.
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = ". scripts/lib.sh; release"
NENRIN = os.environ.get("NENRIN") or subprocess.run(["sh", "-c", BUILT], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() + "/nenrin"
MIB = 1 << 20
HOST_BYTES, IMAGE_BYTES, SYNCS = 768 * MIB, 256 * MIB, 1000
# A write and a flush, which Linux counts as a write too; now and then something of the volume itself.
REQUESTS_MAX = 2.2


def run(*line):
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout.strip()


def fill(path, size):
    with open(path, "wb") as f:
        for _ in range(size // (4 * MIB)):
            f.write(b"\0" * (4 * MIB))
        f.flush()
        os.fsync(f.fileno())


def counters(device):
    with open(f"/sys/block/{os.path.basename(device)}/stat", encoding="ascii") as f:
        n = [int(word) for word in f.read().split()]
    return n[4], n[6] // 2, n[15]


def syncs(device, image, mnt):
    """Requests, KiB and flushes of the device for each append of 4 KiB with its fsync."""
    run(NENRIN, "mount", image, mnt)
    data = os.urandom(4096)
    fd = os.open(os.path.join(mnt, "appended"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    before = counters(device)
    for _ in range(SYNCS):
        os.write(fd, data)
        os.fsync(fd)
    after = counters(device)
    os.close(fd)
    run(NENRIN, "umount", mnt)
    return [(now - then) / SYNCS for now, then in zip(after, before)]


def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1], prefix="nenrin-fresh.") as place:
        host, mnt, disk = (os.path.join(place, name) for name in ("host", "mnt", "disk"))
        os.mkdir(host)
        os.mkdir(mnt)
        fill(disk, HOST_BYTES)
        device = run("losetup", "--find", "--show", "--direct-io=on", disk)
        try:
            run("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device)
            run("mount", device, host)
            try:
                image = os.path.join(host, "image")
                costs = {}
                for how in ("whole", "sparse"):
                    run(NENRIN, "mkfs", "--size", str(IMAGE_BYTES), *(["--sparse"] if how == "sparse" else []), image)
                    os.sync()
                    costs[how], kib, flushes = syncs(device, image, mnt)
                    print(f"{how}: {costs[how]:.2f} requests, {kib:.1f} KiB, {flushes:.2f} flushes a sync")
                    os.unlink(image)
                if costs["whole"] > REQUESTS_MAX or costs["sparse"] < costs["whole"] + 0.5:
                    raise SystemExit("an image as mkfs leaves it: a sync should cost a write and a flush, and more only where there are holes")
            finally:
                run("umount", host)
        finally:
            run("losetup", "--detach", device)


if __name__ == "__main__":
    main()
