# Each target is sufficient by itself on a fresh Debian 12 or Ubuntu 24.04 with Rust 1.85 or newer.

IMAGE ?= nenrin.img
SIZE  ?= 1G
MNT   ?= mnt

.PHONY: help build mount umount test proof lint bench bench-history bench-sync bench-clean bench-stripe compare trace-cost soak install uninstall clean

help:
	@echo 'make mount    build, make a volume in $(IMAGE) if there is none, mount it at ./$(MNT)'
	@echo 'make umount   undo that (the volume stays)'
	@echo 'make test     every test, under 25 minutes on two cores'
	@echo 'make proof    what is tried to break it, counted, into docs/TESTING.md'
	@echo 'make build    the release build: target/release/nenrin'
	@echo 'make lint     formatting and lints'
	@echo 'make bench    benchmarks against other file systems (needs root)'
	@echo 'make bench-history  what going back in time costs, into docs/benchmarks/history.md (needs root)'
	@echo 'make bench-sync  what making writes durable costs, into docs/benchmarks/sync.md (needs root)'
	@echo 'make bench-clean  what the cleaner costs, into docs/benchmarks/clean.md (needs root)'
	@echo 'make bench-stripe  what several devices give, into docs/benchmarks/stripe.md (needs root)'
	@echo 'make compare  what file systems write to their device, into docs/COMPARISON.md (needs root)'
	@echo 'make trace-cost  what recording requests costs the work that is recorded (needs root)'
	@echo 'make soak     the long tests, bounded and resumable'
	@echo 'make install  nenrin and its mount, mkfs and fsck helpers under PREFIX (/usr/local), and a rule for udev'

build:
	@scripts/setup.sh build
	@scripts/build.sh

mount:
	@scripts/setup.sh mount
	@scripts/build.sh
	@scripts/mount.sh '$(IMAGE)' '$(SIZE)' '$(MNT)'

umount:
	@scripts/umount.sh '$(MNT)'

test:
	@scripts/setup.sh test
	@scripts/test.sh

proof:
	@scripts/setup.sh test
	@scripts/proof.sh --write

lint:
	@scripts/setup.sh lint
	@scripts/lint.sh

bench:
	@scripts/setup.sh bench
	@scripts/bench.sh $(ARGS)

bench-history:
	@scripts/setup.sh bench
	@scripts/build.sh
	@scripts/bench-history.sh

bench-sync:
	@scripts/build.sh
	@scripts/bench-sync.sh

bench-clean:
	@scripts/build.sh
	@scripts/bench-clean.sh

bench-stripe:
	@scripts/build.sh
	@scripts/bench-stripe.sh

compare:
	@scripts/setup.sh bench
	@scripts/build.sh
	@scripts/compare.sh

trace-cost:
	@scripts/setup.sh bench
	@scripts/build.sh
	@scripts/trace-cost.sh

soak:
	@scripts/setup.sh soak
	@scripts/soak.sh $(ARGS)

install:
	@scripts/setup.sh build
	@scripts/build.sh
	@scripts/install.sh

uninstall:
	@scripts/install.sh --remove

clean:
	@. scripts/lib.sh && find_cargo && "$$CARGO" clean
