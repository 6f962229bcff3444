#!/usr/bin/env bash
# Builds the images that an overlay uses: images/overlay.sh OVERLAY REGISTRY TAG
#
# With PUSH=1 they are pushed, and the site file names them by digest. CONTAINER as for build.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
overlay=k8s/overlays/$1 registry=$2 tag=$3
[[ -d $overlay ]] || overlay=$1
rendered=$(kubectl kustomize "$overlay")
tool=$(images/tool.sh)
while IFS='=' read -r variable image; do
    name=$(sed 's/VAGEN_IMAGE/cpu/; s/VAGEN_ENV_IMAGE/env-service/; s/VAGEN_\(.*\)_IMAGE/\L\1/' <<<"$variable")
    # Every overlay has steps.
    [[ $name == cpu ]] || grep -qE "image: .*$image" <<<"$rendered" || continue
    SECONDS=0
    images/build.sh "$name" "$registry/$name:$tag"
    size=$("$tool" image inspect --format '{{.Size}}' "$registry/$name:$tag")
    echo "$registry/$name:$tag: $((SECONDS / 60)) minutes, $((size / 1000000)) MB"
    if [[ ${PUSH:-} == 1 ]]; then
        "$tool" push "$registry/$name:$tag"
        images/pin.sh "$name" "$("$tool" image inspect --format '{{index .RepoDigests 0}}' "$registry/$name:$tag")"
    fi
done < <(grep '^VAGEN.*_IMAGE=' k8s/site/site.env)
