#!/usr/bin/env bash
# Makes the base image localhost/debian-python:bookworm from Debian's packages, where no registry of
# images can be reached. Needs root, mmdebstrap and buildah, whose images podman has, too.
set -euo pipefail

packages=python3,python3-venv,python3-pip,ca-certificates
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tool in mmdebstrap buildah; do
    command -v "$tool" >/dev/null || { echo "$tool is needed: apt-get install $tool" >&2; exit 2; }
done
mmdebstrap --variant=minbase --include="$packages" bookworm "$work/base.tar"
container=$(buildah from scratch)
buildah add --quiet "$container" "$work/base.tar" /
buildah commit --quiet --rm "$container" localhost/debian-python:bookworm
