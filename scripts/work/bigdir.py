"""Phases of the large directory; each prints its time. bigdir.py PHASE DIR COUNT"""
import os, random, sys, time

phase, top, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
SAMPLE = 100000
name = lambda i: f"{top}/entry-{i:07}"


def timed(what, n, work):
    begin = time.monotonic()
    work()
    s = time.monotonic() - begin
    print(f"   {what:<58} {s:.1f} s, {s / max(n, 1) * 1e6:.0f} us each", flush=True)


def create():
    os.mkdir(top)
    for i in range(count):
        os.close(os.open(name(i), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def lists(expected):
    def work():
        seen = set()
        total = 0
        with os.scandir(top) as entries:
            for e in entries:
                total += 1
                seen.add(e.name)
        assert total == len(seen), f"listed {total} names, {len(seen)} different ones"
        assert seen == set(expected), f"{len(seen)} names, {len(seen ^ set(expected))} wrong"
    return work


def all_names():
    return (f"entry-{i:07}" for i in range(count))


def stat_some():
    inos = set()
    # In no order, so each one finds other index nodes; find walks them all.
    order = random.Random(1).sample(range(count), min(count, SAMPLE))
    for i in order:
        s = os.stat(name(i))
        assert s.st_size == 0 and s.st_nlink == 1
        inos.add(s.st_ino)
    assert len(inos) == len(order), "inode numbers repeat"
    for i in range(count, count + 1000):
        assert not os.path.exists(name(i))


def remove(which):
    def work():
        for i in which:
            os.unlink(name(i))
    return work


if phase == "create":
    timed(f"create {count}", count, create)
elif phase == "list":
    timed("list", count, lists(all_names()))
elif phase == "stat":
    timed(f"stat {min(count, SAMPLE)}, shuffled", min(count, SAMPLE), stat_some)
elif phase == "remove":
    # While it is being listed: names that stay are listed once, names that go at most once.
    def shrinking():
        listed = []
        with os.scandir(top) as entries:
            for n, e in enumerate(entries):
                listed.append(e.name)
                if n % 10 == 0 and n // 10 < count // 20:
                    os.unlink(name(count - 1 - n // 10))
        assert len(listed) == len(set(listed)), "a name was listed twice"
        assert set(listed) >= {f"entry-{i:07}" for i in range(count - count // 20)}, "a name that stayed was not listed"
    timed(f"list while {count // 20} are removed", count, shrinking)
    left = len(os.listdir(top))
    odd = [i for i in range(left) if i % 2]
    timed("remove every second", len(odd), remove(odd))
    timed("list", left - len(odd), lists(f"entry-{i:07}" for i in range(0, left, 2)))
    even = [i for i in range(left - 1, -1, -1) if i % 2 == 0]
    timed("remove the others, backwards", len(even), remove(even))
    os.rmdir(top)
