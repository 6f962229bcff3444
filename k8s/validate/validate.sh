#!/usr/bin/env bash
# Everything that can be checked without a cluster: k8s/validate/validate.sh TOOLS
#
# TOOLS is the bin folder of a virtual environment with constraints/validate.txt. CRDS names a folder
# of CustomResourceDefinitions (KubeRay, Kueue, Prometheus) to check their objects against, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$1
out=build/manifests
mkdir -p "$out"

step() { printf '%-12s %s\n' "$1" "$2"; }

for overlay in k8s/overlays/*/ k8s/kfp/ tests/k8s/every-component/; do
    kubectl kustomize "$overlay" >"$out/$(basename "$overlay").yaml"
done
step kustomize "$(find "$out" -name '*.yaml' | wc -l) renderings in $out"

schemas=$("$tools/python" k8s/validate/schemas.py --kubernetes 1.33 ${CRDS:+--crds "$CRDS"} "$out"/*.yaml)
step schemas "$schemas"

step promql "$("$tools/python" k8s/validate/promql.py "$out"/*.yaml)"

# Skips are annotations of the objects, each with its reason. Names of hosts are looked up, and not
# found where there is no network: its log goes away, its findings do not.
LOG_LEVEL=CRITICAL "$tools/checkov" --quiet --compact --skip-download --framework kubernetes \
    --directory "$out" 2>/dev/null
LOG_LEVEL=CRITICAL "$tools/checkov" --quiet --compact --skip-download --framework dockerfile \
    --file images/Dockerfile.* 2>/dev/null
step checkov "no findings"
