#!/usr/bin/env bash
# lock.sh: write requirements/rehearse.lock anew from pyproject.toml; what is locked stays where it still fits.
# The train locks are kept by hand: no resolver takes what SkyRL, vLLM's CPU build and Ray each ask for.
set -euo pipefail
.venv/bin/uv pip compile --quiet --universal --python-version 3.12 --extra dev --no-header --no-annotate \
  --output-file requirements/rehearse.lock pyproject.toml
