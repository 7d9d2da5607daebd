#!/usr/bin/env bash
# No descriptors, little memory, dirty mappings.
exec "$(dirname "$0")/../work/daemon.sh" limits
