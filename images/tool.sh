#!/usr/bin/env bash
# Prints which program builds images here: CONTAINER, else docker, podman or buildah.
[[ -z ${CONTAINER:-} ]] || exec basename "$CONTAINER"
docker info >/dev/null 2>&1 && exec echo docker
for tool in podman buildah; do
    ! command -v $tool >/dev/null || exec echo $tool
done
echo "docker, podman or buildah is needed to build images (apt-get install buildah)" >&2
exit 2
