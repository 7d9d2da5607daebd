#!/usr/bin/env bash
# Devices that are brought up to date, and replaced, while files are written.
exec "$(dirname "$0")/../work/replace.sh" 160
