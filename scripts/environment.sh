#!/usr/bin/env bash
# environment.sh .venv | .venv-train : make one of the two Python environments from its lock.
# .venv runs the commands, the infrastructure code and the emulated AWS; .venv-train is the train image of the laptop.
set -euo pipefail
target=$1
uv_version=0.13.9

fail() { printf 'error: %s\n  -> %s\n' "$1" "$2" >&2; exit 3; }

scripts/require_idle.sh
case $PWD in *[[:space:]]*) fail "the path of this checkout holds white space: $PWD" "move the checkout" ;; esac

# The first Python 3.12 or 3.13 that really starts: version managers leave names on PATH that do not.
find_python() {
  local candidate
  for candidate in "${SKYPOD_PYTHON:-}" python3.12 python3.13 python3 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13.*/bin/python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys, venv; sys.exit(not (3, 12) <= sys.version_info < (3, 14))' 2> /dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  fail "no Python 3.12 or 3.13 with the venv module was found" \
    "install one (Debian: python3-venv, pyenv: pyenv install 3.12) or name it: SKYPOD_PYTHON=/path/to/python make install"
}

python=$(find_python)
version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
case $target in
  .venv) lock=requirements/rehearse.lock needed_gib=3 ;;
  .venv-train) lock=requirements/train-cpu-py$version.lock needed_gib=8 ;;
  *) fail "unknown environment $target" "use .venv or .venv-train" ;;
esac

free_gib=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1048576))
[ "$free_gib" -ge "$needed_gib" ] || fail "only $free_gib GiB of disk are free here, $target needs $needed_gib" "make room"

echo "making $target from $lock with $python"
rm -rf "$target"
"$python" -m venv "$target"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
uv() { VIRTUAL_ENV=$PWD/$target "$target/bin/uv" "$@"; }
uv pip install --quiet --no-deps --requirement "$lock"
uv pip install --quiet --no-deps --editable .
# Once, so that no process compiles again: it halves the start of each of the many that a rehearsal runs.
"$target/bin/python" -m compileall -q -j 2 "$target/lib" > /dev/null 2>&1 || true
touch "$target/.complete"
