#!/usr/bin/env bash
# Writes a software bill of materials (CycloneDX JSON): images/sbom.sh IMAGE FILE
#
# syft sees everything in the image; without it, cyclonedx-py lists the Python environment.
set -euo pipefail
[[ $# -eq 2 ]] || { echo "usage: images/sbom.sh IMAGE FILE" >&2; exit 2; }
image=$1 file=$2
tool=("${CONTAINER:-podman}")
[[ -z ${RUNTIME:-} ]] || tool+=(--runtime "$RUNTIME")
mkdir -p "$(dirname "$file")"
if command -v syft >/dev/null; then
    syft "$image" --output "cyclonedx-json=$file"
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "${PYTHON:-python3}" -m venv "$work/tool"
    "$work/tool/bin/pip" install --quiet cyclonedx-bom==7.5.0
    # What the image has installed, as pip would print it: the tool itself stays out of the image.
    "${tool[@]}" run --rm --network none --ulimit nofile=20000:20000 --ulimit nproc=30000:30000 \
        --entrypoint python "$image" -c '
import importlib.metadata as metadata
for package in sorted(metadata.distributions(), key=lambda found: found.name.lower()):
    print(f"{package.name}=={package.version.split(chr(43))[0]}")' >"$work/requirements.txt"
    "$work/tool/bin/cyclonedx-py" requirements "$work/requirements.txt" \
        --output-format JSON --output-file "$file"
fi
echo "$file: $(grep -c '"purl"' "$file") components"
