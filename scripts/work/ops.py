"""Random operations of every kind in a directory. ops.py DIR COUNT SEED"""
import os, random, shutil, sys

top, count, r = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
os.makedirs(top, exist_ok=True)
os.chdir(top)
dirs, files = ["."], []
for root, ds, fs in os.walk("."):
    dirs += [os.path.join(root, d) for d in sorted(ds)]
    files += [os.path.join(root, f) for f in sorted(fs) if os.path.isfile(os.path.join(root, f))]
serial = r.getrandbits(32)


def new():
    global serial
    serial += 1
    return f"{r.choice(dirs)}/{r.choice('abcdefgh年')}{serial:x}"


def drop(path):
    files.remove(path)
    return path


done = 0
while done < count:
    kind = r.random()
    done += 1
    if kind < 0.22 or len(files) < 20:
        path = new()
        with open(path, "wb") as f:
            f.write(r.randbytes(int(r.lognormvariate(8, 1.7)) % 300000))
        files.append(path)
    elif kind < 0.42:
        with open(r.choice(files), "r+b") as f:
            f.seek(r.randrange(0, 200000))
            f.write(r.randbytes(r.randrange(1, 20000)))
            if r.random() < 0.05:
                os.fsync(f.fileno())
    elif kind < 0.50:
        with open(r.choice(files), "ab") as f:
            f.write(r.randbytes(r.randrange(1, 9000)))
    elif kind < 0.56:
        os.truncate(r.choice(files), r.randrange(0, 100000))
    elif kind < 0.66:
        os.unlink(drop(r.choice(files)))
    elif kind < 0.73:
        old, to = drop(r.choice(files)), new()
        os.rename(old, to)
        files.append(to)
    elif kind < 0.77:
        # Replaces another.
        old = drop(r.choice(files))
        os.rename(old, r.choice(files))
    elif kind < 0.80 and len(dirs) < 300:
        path = new()
        os.mkdir(path)
        dirs.append(path)
    elif kind < 0.83:
        path = new()
        os.link(r.choice(files), path)
        files.append(path)
    elif kind < 0.86:
        os.symlink("x" * r.randrange(1, 200), new())
    elif kind < 0.90:
        os.chmod(r.choice(files), r.choice([0o600, 0o644, 0o755, 0o400]) | 0o600)
    elif kind < 0.94:
        os.utime(r.choice(files + dirs[1:]), ns=(r.randrange(2 * 10**18), r.randrange(2 * 10**18)))
    elif kind < 0.98:
        os.setxattr(r.choice(files), f"user.x{r.randrange(5)}", r.randbytes(r.randrange(0, 500)))
    elif len(dirs) > 5:
        # A directory goes elsewhere, or with everything in it.
        gone = r.choice(dirs[1:])
        inside = lambda p: p == gone or p.startswith(gone + "/")
        if r.random() < 0.5:
            shutil.rmtree(gone)
        else:
            to = new()
            if inside(to):
                continue
            os.rename(gone, to)
            dirs += [to + d[len(gone):] for d in dirs if inside(d)]
            files += [to + f[len(gone):] for f in files if inside(f)]
        dirs = [d for d in dirs if not inside(d)]
        files = [f for f in files if not inside(f)]
