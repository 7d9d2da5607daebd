#!/usr/bin/env python3
"""SQLite under several writers, each with a database of its own, for nenrin-bench.

sqlite_load.py delete|wal prepare|run|end DIR

A run is 8 threads with 125 transactions each, one insert or update of a row of 100 bytes per
transaction, synchronous=FULL. Its last line is `operations N seconds S`.
"""
import os
import shutil
import sqlite3
import sys
import threading
import time

THREADS, EACH, ROWS = 8, 125, 1000
mode, verb, where = sys.argv[1:4]
where += "-" + mode


def connect(n):
    db = sqlite3.connect(os.path.join(where, f"{n}.db"), isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=" + mode)
    db.execute("PRAGMA synchronous=FULL")
    return db


def prepare():
    shutil.rmtree(where, ignore_errors=True)
    os.mkdir(where)
    for n in range(THREADS):
        db = connect(n)
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, text BLOB)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO t(text) VALUES(?)", ((os.urandom(100),) for _ in range(ROWS)))
        db.execute("COMMIT")
        db.close()


def work(n, db, start, failures):
    start.wait()
    try:
        for k in range(EACH):
            db.execute("BEGIN IMMEDIATE")
            if k % 2:
                db.execute("UPDATE t SET text=? WHERE id=?", (os.urandom(100), k * 7 % ROWS + 1))
            else:
                db.execute("INSERT INTO t(text) VALUES(?)", (os.urandom(100),))
            db.execute("COMMIT")
    except sqlite3.Error as error:
        failures.append(f"{n}: {error}")


def run():
    databases, failures = [connect(n) for n in range(THREADS)], []
    start = threading.Barrier(THREADS + 1)
    threads = [threading.Thread(target=work, args=(n, db, start, failures)) for n, db in enumerate(databases)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    if failures:
        sys.exit("sqlite_load.py: " + "; ".join(failures))
    for db in databases:
        db.close()
    print(f"operations {THREADS * EACH} seconds {took:.6f}")


{"prepare": prepare, "run": run, "end": lambda: None}[verb]()
