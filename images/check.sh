#!/usr/bin/env bash
# Builds the CPU image of this checkout in minutes and runs it: images/check.sh SITE_PACKAGES
#
# Everything is done as for a published image, but for its dependencies: those of SITE_PACKAGES are
# lent to it, where constraints/verl.txt is installed. Needs root, mmdebstrap, podman, buildah, runc.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p build
work=$(mktemp -d -p build)
tag=localhost/vagen-check:$$ base=localhost/vagen-check-base:$$
tidy() {
    rm -rf "$work"
    buildah rmi --force "$tag" "$base" >/dev/null 2>&1 || true
}
trap tidy EXIT
cp -al "$1" "$work/lent"
rm -rf "$work"/lent/{vagen-*,__editable__*,_vagen*}
lent=$PWD/$work/lent:/lent:ro

base_of_debian=localhost/debian-python:bookworm
buildah inspect --type image $base_of_debian >/dev/null 2>&1 || images/base.sh
container=$(buildah from $base_of_debian)
buildah config --env PYTHONPATH=/lent "$container"
buildah commit --quiet --rm "$container" "$base"
TORCH_INDEX="" CONTAINER=buildah BASE_IMAGE=$base VOLUME=$lent images/build.sh cpu "$tag"
VOLUME=$lent RUNTIME=runc images/try.sh "$tag"
