"""Load for the daemon's sudden death, and what must hold after it.

kill.py sql FILE ACKS MODE      transactions for ever; each is noted in ACKS once it was acknowledged
kill.py git REPO ACKS           commits for ever; each is noted once it was synced
kill.py files DIR ACKS SEED     files replaced by rename, appended, synced, for ever
kill.py verify-sql FILE ACKS    all of it is there
kill.py verify-git REPO ACKS
kill.py verify-files DIR ACKS
"""
import hashlib, os, random, shutil, sqlite3, subprocess, sys

what, path, acks = sys.argv[1:4]
# Ends by itself as soon as the volume is gone: what it was told until then counts.


def ack(line):
    with open(acks, "a") as f:
        f.write(line + "\n")


def acked():
    try:
        return open(acks).read().split("\n")[:-1]
    except FileNotFoundError:
        return []


def must(ok, text):
    if not ok:
        print("WRONG:", text, file=sys.stderr)
        sys.exit(1)


def blob(n):
    return random.Random(n).randbytes(n * 37 % 9000)


def sql():
    mode = sys.argv[4]
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode=" + mode)
    # EXTRA syncs the directory after the journal was removed; without it SQLite promises
    # nothing for the last transaction of a rollback journal.
    db.execute("PRAGMA synchronous=" + ("FULL" if mode == "WAL" else "EXTRA"))
    db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, b BLOB)")
    db.execute("CREATE TABLE IF NOT EXISTS sums(k INTEGER PRIMARY KEY, n INTEGER)")
    n = db.execute("SELECT coalesce(max(id), 0) FROM t").fetchone()[0]
    r = random.Random()
    while True:
        db.execute("BEGIN IMMEDIATE")
        for _ in range(r.choice([1, 1, 1, 2, 20])):
            n += 1
            db.execute("INSERT INTO t VALUES(?, ?)", (n, blob(n)))
            db.execute("INSERT INTO sums VALUES(?, 1) ON CONFLICT(k) DO UPDATE SET n = n + 1", (n % 7,))
        db.execute("COMMIT")
        if mode == "DELETE":
            # SQLite takes a directory that it cannot open to be synced (unixDelete in os_unix.c). Of
            # a daemon killed between the two calls it would report success: so ask ourselves.
            fd = os.open(os.path.dirname(path), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        ack(str(n))


def verify_sql():
    wanted = max(map(int, acked()), default=0)
    if not os.path.exists(path):
        must(wanted == 0, "the database is gone")
        return
    db = sqlite3.connect(path)
    must(db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "integrity_check")
    if wanted == 0:
        return
    last, count = db.execute("SELECT max(id), count(*) FROM t").fetchone()
    must(last >= wanted, f"transaction {wanted} was acknowledged, the last there is {last}")
    must(count == last, f"{count} rows, the last is {last}")
    must(db.execute("SELECT sum(n) FROM sums").fetchone()[0] == count, "half a transaction")
    for n, b in db.execute("SELECT id, b FROM t WHERE id > ?", (last - 2000,)):
        must(b == blob(n), f"row {n} has other content")
    print(f"   sql: {wanted} acknowledged, {last} there")


def git_run(*words, check=True):
    return subprocess.run(("git", "-C", path) + words, check=check, capture_output=True, text=True)


def git():
    if not acked():
        # Killed within git init.
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run(("git", "init", "-q", "-b", "main", path), check=True)
    for root, _, names in os.walk(path + "/.git"):
        for name in names:
            if name.endswith(".lock"):
                os.unlink(os.path.join(root, name))
    for k, v in [("core.fsync", "all"), ("core.fsyncMethod", "fsync"), ("gc.auto", "0")]:
        git_run("config", k, v)
    # git init and git config sync nothing.
    for root, _, names in os.walk(path + "/.git"):
        for name in names:
            fd = os.open(os.path.join(root, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    # The index may be older than the last commit.
    git_run("reset", "-q", "--hard", check=False)
    n = len(acked())
    while True:
        n += 1
        with open(f"{path}/f{n % 29}", "ab") as f:
            f.write(b"%d\n" % n * (n % 40))
        git_run("add", "-A")
        git_run("commit", "-q", "-m", str(n), "--allow-empty")
        head = git_run("rev-parse", "HEAD").stdout.strip()
        # git does not sync the directory it renamed in; a sync of any file does it here.
        fd = os.open(path + "/.git/refs/heads/main", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        ack(head)
        if n % 60 == 0:
            git_run("-c", "gc.pruneExpire=now", "gc", "-q")


def verify_git():
    done = acked()
    if not done:
        return
    out = git_run("fsck", "--full", "--strict", "--no-dangling", check=False)
    text = [l for l in (out.stdout + out.stderr).split("\n") if l and "dangling" not in l and "Checking" not in l and "notice:" not in l]
    must(out.returncode == 0 and not text, f"git fsck: {out.returncode} {text[:10]}")
    must(git_run("merge-base", "--is-ancestor", done[-1], "HEAD", check=False).returncode == 0, f"commit {len(done)} {done[-1]} is not in HEAD")
    there = set(git_run("rev-list", "HEAD").stdout.split())
    must(all(c in there for c in done), "an acknowledged commit is gone")
    print(f"   git: {len(done)} acknowledged, {len(there)} there")


def content(seed, n):
    """The whole text tells what it is, so that any content that is not one of ours shows."""
    body = random.Random(seed * 1000003 + n).randbytes((seed * 7919 + n * 104729) % 60000)
    return hashlib.sha256(body).hexdigest().encode() + b" %d %d\n" % (seed, n) + body


def files():
    os.makedirs(path, exist_ok=True)
    n = len(acked())
    while True:
        n += 1
        k = n % 23
        with open(f"{path}/k{k}.new", "wb") as f:
            f.write(content(k, n))
            f.flush()
            # Every second without a sync: then it may be the old one, never an empty or torn one.
            if n % 2:
                os.fsync(f.fileno())
        os.rename(f"{path}/k{k}.new", f"{path}/k{k}")
        fd = os.open(path, os.O_RDONLY) if n % 2 else os.open(f"{path}/k{k}", os.O_RDONLY)
        if n % 2:
            os.fsync(fd)
        os.close(fd)
        ack(f"{n} {k} {n % 2}")


def verify_files():
    last = {}
    for line in acked():
        n, k, synced = map(int, line.split())
        if synced:
            last[k] = n
    if not os.path.isdir(path):
        must(not last, "the directory is gone")
        return
    for name in sorted(os.listdir(path)):
        if name.endswith(".new"):
            continue
        data = open(f"{path}/{name}", "rb").read()
        head, _, body = data.partition(b"\n")
        words = head.split()
        must(len(words) == 3 and hashlib.sha256(body).hexdigest().encode() == words[0], f"{name} is torn or empty: {len(data)} bytes")
        k, n = int(words[1]), int(words[2])
        must(f"k{k}" == name, f"{name} has the content of k{k}")
        must(n >= last.pop(k, 0), f"{name} is of {n}, a later one was synced")
    must(not last, f"synced files are gone: {last}")
    print(f"   files: {len(acked())} acknowledged")


try:
    {"sql": sql, "git": git, "files": files, "verify-sql": verify_sql, "verify-git": verify_git, "verify-files": verify_files}[what]()
except (OSError, sqlite3.Error, subprocess.CalledProcessError) as e:
    if what.startswith("verify"):
        raise
    text = getattr(e, "stderr", "") or ""
    print(f"{what} ended: {e!r} {text.strip()[-200:]}", file=sys.stderr)
