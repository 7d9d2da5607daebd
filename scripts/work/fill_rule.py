"""A round of fill.sh under a short rule for keeping checkpoints, which is applied every ten minutes of a mount.

fill_rule.py MNT MODEL SEED STEPS NENRIN   prints how many checkpoints the rule let go
"""
import errno, hashlib, json, os, pickle, sys, time

from fill import SECTOR, FULL, Work, available, pattern

RULES = ("20s:all 10m:1m", "1m:all 5m:30s", "5s:all 2m:20s forever:5m")
# The rule is applied once in so long.
APPLIED_EVERY = 600
# Most seconds to wait beyond that.
LATE = 120


def told(stamps):
    """What names the content of a file."""
    return len(stamps), hashlib.blake2b(stamps.tobytes(), digest_size=16).digest()


class Ruled(Work):
    def __init__(self, mnt, seed, nenrin):
        super().__init__(mnt, seed, nenrin)
        self.rule = self.random.choice(RULES)
        self.states, self.deleted, self.states_right, self.states_shed = {}, 0, 0, 0
        self.run("retention", "set", mnt, self.rule)
        self.kept_before, self.cut_before = len(self.kept()), self.counters()["checkpoints"]

    def run(self, *words):
        """A command that is never refused."""
        done = self.command_out(*words)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} failed: {done.stderr}")
        return done.stdout

    def kept(self):
        return {c["cno"]: c["name"] for c in json.loads(self.run("checkpoint", "list", "--json", self.mnt))}

    def counters(self):
        return json.loads(self.run("info", "--json", self.mnt))["counters"]

    def gone_by(self, *words):
        before = self.kept()
        self.run(*words)
        self.deleted += len(before.keys() - self.kept().keys())

    def thinned(self):
        """Checkpoints that neither a command nor the want of room let go."""
        now = self.counters()
        cut = now["checkpoints"] - self.cut_before
        return self.kept_before + cut - self.deleted - now["checkpoints_shed"] - len(self.kept())

    def truncate(self):
        """And closed: what truncate(2) empties without a handle is held back, and a checkpoint shows it as it was."""
        name = self.pick()
        length = self.random.randrange(len(self.files[name]) + 1)
        fd = os.open(self.path(name), os.O_WRONLY)
        try:
            os.ftruncate(fd, length * SECTOR)
        finally:
            os.close(fd)
        del self.files[name][length:]

    def checkpoint(self):
        done = self.command_out("checkpoint", "create", "--json", self.mnt)
        if done.returncode == 0:
            self.states[json.loads(done.stdout)["cno"]] = {name: told(stamps) for name, stamps in self.files.items()}

    def delete(self):
        """A range, as `checkpoint delete A..B` takes it."""
        all_of = sorted(self.kept())
        if len(all_of) > 4:
            at = self.random.randrange(len(all_of) - 3)
            self.gone_by("checkpoint", "delete", self.mnt, f"{all_of[at]}..{all_of[at + self.random.randrange(3)]}")

    def expire(self):
        if self.snapshots:
            self.gone_by("snapshot", "delete", self.mnt, self.snapshots.pop(0))

    def verify_states(self):
        """What is kept shows what it showed; a file whose history went for want of room says so."""
        for cno in self.states.keys() & self.kept().keys():
            at = os.path.join(self.mnt, ".nenrin", "at", str(cno))
            wanted = self.states[cno]
            try:
                if sorted(os.listdir(at)) != sorted(wanted):
                    sys.exit(f"checkpoint {cno}: names differ: {set(os.listdir(at)) ^ set(wanted)}")
            except OSError as e:
                # It went between the list and now.
                if cno in self.kept():
                    sys.exit(f"checkpoint {cno}: {e}")
                continue
            for name, (length, digest) in wanted.items():
                self.verify_file(cno, os.path.join(at, name), length, digest)

    def verify_file(self, cno, path, length, digest):
        try:
            with open(path, "rb") as f:
                data = f.read()
        except OSError as e:
            if e.errno != errno.ESTALE:
                sys.exit(f"{path}: {e}")
            self.states_shed += 1
            return
        stamps = type(self.files[next(iter(self.files))])("Q", b"".join(data[n : n + 8] for n in range(0, len(data), SECTOR)))
        if told(stamps) != (length, digest) or data != pattern(stamps):
            sys.exit(f"{path} is not what checkpoint {cno} showed")
        self.states_right += 1


def for_a_while(w, what):
    try:
        what()
    except OSError as e:
        if e.errno not in FULL:
            raise
        w.refused += 1


def until_applied(w):
    """Work on a volume with room for history, until the rule was applied."""
    while available(w.mnt) > 0.45 * w.empty:
        w.create() if w.random.random() < 0.5 or not w.files else w.grow()
    begin, next_state, next_delete = time.monotonic(), 0.0, 40.0
    while True:
        passed = time.monotonic() - begin
        if passed > APPLIED_EVERY and w.thinned() > 0:
            break
        if passed > APPLIED_EVERY + LATE:
            sys.exit(f"in {passed:.0f} s the rule {w.rule} let nothing go of {len(w.kept())} checkpoints")
        if passed >= next_state:
            w.checkpoint()
            next_state = passed + 12
        if passed >= next_delete:
            w.delete()
            next_delete = passed + 40
        what = w.random.choice((w.overwrite, w.overwrite, w.overwrite, w.truncate, w.copy, w.sync, w.remove if len(w.files) > 20 else w.create))
        for_a_while(w, what)
        time.sleep(0.1)
    w.verify_states()


def main(mnt, model, seed, steps, nenrin):
    w = Ruled(mnt, int(seed), nenrin)
    until_applied(w)
    thinned, left = w.thinned(), len(w.kept())
    for n in range(int(steps)):
        w.step()
        if n % 100 == 0:
            w.checkpoint()
        if n % 250 == 0:
            w.delete()
    w.verify_states()
    with open(model, "wb") as f:
        pickle.dump((w.files, w.snapshots, w.empty), f)
    print(
        f"   rule {w.rule}: {thinned} checkpoints let go by it and {left} left; {w.deleted} deleted by commands; of past states {w.states_right} files "
        f"right, {w.states_shed} let go for want of room; {w.refused} writes and {w.removals_refused} removals refused",
        file=sys.stderr, flush=True,
    )
    print(thinned)


main(*sys.argv[1:])
