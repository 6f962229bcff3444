#!/usr/bin/env bash
# Makes the base image localhost/debian-python:bookworm from Debian's packages, where no registry of
# images can be reached. Needs root, mmdebstrap, and podman or buildah.
set -euo pipefail

packages=python3,python3-venv,python3-pip,ca-certificates
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tool in mmdebstrap podman; do
    command -v "$tool" >/dev/null || { echo "$tool is needed: apt-get install $tool" >&2; exit 2; }
done
mmdebstrap --variant=minbase --include="$packages" bookworm "$work/base.tar"
podman import "$work/base.tar" localhost/debian-python:bookworm
