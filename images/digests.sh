#!/usr/bin/env bash
# Writes into images/bases.env the digests that its tags have today; needs skopeo or docker.
set -euo pipefail
cd "$(dirname "$0")"

digest() {
    if command -v skopeo >/dev/null; then
        skopeo inspect --format '{{.Digest}}' "docker://$1"
    elif command -v docker >/dev/null; then
        docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
    else
        echo "skopeo or docker is needed to look digests up" >&2
        exit 2
    fi
}

grep -v '^#' bases.env | while IFS='=' read -r name image; do
    image=${image%@*}
    found=$(digest "$image")
    [[ $found =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "no digest of $image: $found" >&2; exit 1; }
    sed -i "s|^$name=.*|$name=$image@$found|" bases.env
    echo "$name=$image@$found"
done
