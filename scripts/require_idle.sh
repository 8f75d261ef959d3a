#!/bin/sh
# Refuse while a rehearsal of this checkout runs or is kept up: it needs what the caller is about to remove.
# The lock is the one that rehearsal/preflight.py holds.
lock=.rehearsal/lock
[ -e "$lock" ] || exit 0
flock -n "$lock" true && exit 0
printf 'error: a rehearsal of this checkout is running (process %s)\n  -> wait for it, or end it with `make stop`\n' \
  "$(cat "$lock")" >&2
exit 3
