#!/usr/bin/env bash
# POSIX conformance.
exec "$(dirname "$0")/../work/suites.sh" pjdfstest
