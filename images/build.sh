#!/usr/bin/env bash
# Builds one image: images/build.sh TARGET TAG
#
# TARGET is a stage of images/Dockerfile.cpu (cpu, env-service) or of images/Dockerfile.gpu (trainer,
# judge). Environment:
#   CONTAINER   docker, podman or buildah; the first that works
#   BASE_IMAGE  instead of the one in images/bases.env
#   TORCH_INDEX where Dockerfile.cpu takes torch (PyTorch's index of CPU builds); empty: pip's own index
#   VOLUME      a folder lent to the build, "FROM:TO:ro" (podman and buildah)
# pip's configuration of this machine (index, certificates, folders of wheels) is lent to the build.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "$*" >&2
    exit 2
}

# pip's settings as a file, without those that only concern its own output.
pip_settings() {
    echo "[global]"
    "${PYTHON:-python3}" -m pip config list 2>/dev/null \
        | sed -n "s/^\(global\|:env:\)\.\(index-url\|extra-index-url\|find-links\|cert\|trusted-host\|proxy\|default-timeout\)='\(.*\)'$/\2 = \3/p" \
        | sed 's/^default-timeout/timeout/; s/\\n/ /g' | sort -u -t= -k1,1
}

# Folders and files of this machine that those settings name; an index lies beside its files.
pip_paths() {
    grep -oE '(file://|= | )/[^ ]+' "$1" | sed 's,^[^/]*\(//\)\?/,/,; s,/simple/\?$,,' | while read -r path; do
        if [[ -e $path ]]; then echo "$path"; fi
    done | sort -u
}

[[ $# -eq 2 ]] || fail "usage: images/build.sh TARGET TAG"
target=$1 tag=$2
case $target in
cpu | env-service) file=images/Dockerfile.cpu base=CPU_BASE ;;
trainer | judge) file=images/Dockerfile.gpu base=GPU_BASE ;;
*) fail "no target $target: use cpu, env-service, trainer or judge" ;;
esac

BASE_IMAGE=${BASE_IMAGE:-$(sed -n "s/^$base=//p" images/bases.env)}
[[ $BASE_IMAGE =~ @sha256:[0-9a-f]{64}$ || $BASE_IMAGE == localhost/* ]] || fail \
    "$base in images/bases.env is $BASE_IMAGE, without its digest: run make image-digests"

torch=()
[[ -z ${TORCH_INDEX+set} || $base == GPU_BASE ]] || torch=(--build-arg "TORCH_INDEX=$TORCH_INDEX")
tool=$(images/tool.sh)
settings=$(mktemp)
trap 'rm -f "$settings"' EXIT
pip_settings >"$settings"

options=(--file "$file" --target "$target" --build-arg "BASE_IMAGE=$BASE_IMAGE" --tag "$tag"
    --secret "id=pip,src=$settings" "${torch[@]}")
if [[ $tool == docker ]]; then
    export DOCKER_BUILDKIT=1
    if grep -qE 'file://|find-links' "$settings"; then
        fail "pip takes packages from folders of this machine, which docker cannot lend to a build: use CONTAINER=podman"
    fi
else
    [[ -z ${VOLUME:-} ]] || options+=(--volume "$VOLUME")
    while read -r path; do options+=(--volume "$path:$path:ro"); done < <(pip_paths "$settings")
    # Where no user namespace can be made (another container, CI), a chroot does.
    options+=(--isolation "${ISOLATION:-chroot}" --network host --format docker)
fi
"$tool" build "${options[@]}" .
