#!/usr/bin/env bash
# Devices are added, removed and resized beneath real work.
exec "$(dirname "$0")/../work/devices.sh"
