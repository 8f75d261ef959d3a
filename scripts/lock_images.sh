#!/usr/bin/env bash
# lock_images.sh: write docker/*/requirements.lock anew from the requirements.txt beside each, for Python 3.12 on
# Linux x86_64 with CUDA 13; what is locked stays where it still fits. It needs no GPU and builds nothing.
set -euo pipefail
export UV_CUSTOM_COMPILE_COMMAND=scripts/lock_images.sh
for image in train serve; do
  .venv/bin/uv pip compile --quiet --config-file docker/uv.toml --override docker/overrides.txt \
    --python .venv/bin/python --python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-annotate \
    --output-file "docker/$image/requirements.lock" "docker/$image/requirements.txt"
done
# SkyRL names its authors' own build, which docker/train/wheels.txt fetches and no index has.
sed -i 's/^vllm-router==.*/vllm-router==0.1.14.post1/' docker/train/requirements.lock
