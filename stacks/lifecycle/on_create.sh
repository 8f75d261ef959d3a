#!/bin/bash
# HyperPod runs this once on every new node, before the node joins the cluster.
# Training images are larger than the root volume, so containerd keeps its data on the extra one.
set -euo pipefail

volume=/opt/sagemaker
config=/etc/eks/containerd/containerd-config.toml

if ! mountpoint -q "$volume"; then
  echo "on_create: no volume at $volume; containerd stays on the root volume"
  exit 0
fi
if [[ ! -f "$config" ]]; then
  echo "on_create: $config is missing; this machine image is not the one that this script knows" >&2
  exit 1
fi
mkdir -p "$volume/containerd/data-root"
if grep -qE '^[# ]*root *=' "$config"; then
  sed -i -E "s|^[# ]*root *=.*|root = \"$volume/containerd/data-root\"|" "$config"
else
  sed -i "1i root = \"$volume/containerd/data-root\"" "$config"
fi
echo "on_create: containerd keeps its data in $volume/containerd/data-root"
