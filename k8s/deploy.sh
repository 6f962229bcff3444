#!/usr/bin/env bash
# Brings an overlay to a cluster, or takes it away: k8s/deploy.sh deploy|undeploy OVERLAY
#
# OVERLAY is a name under k8s/overlays or a folder with a kustomization of your own. Environment:
#   CONTEXT       of kubectl; the current one
#   TIMEOUT       for the platform to become ready; 10m
#   YES=1         undeploy without asking
#   DATA=delete   undeploy removes volumes and namespaces, too: database, store and all that is in them
set -euo pipefail
start=$PWD
cd "$(dirname "$0")"

fail() {
    echo "$*" >&2
    exit 2
}

kube() { kubectl ${CONTEXT:+--context "$CONTEXT"} "$@"; }

site() { sed -n "s/^$1=//p" site/site.env; }

namespaces() { awk '/^kind: Namespace$/ { found = 1 } found && /^  name:/ { print $2; found = 0 }' "$1"; }

# All objects but namespaces: with a namespace its volumes would go.
without_namespaces() { awk 'BEGIN { RS = "---\n"; ORS = "---\n" } !/(^|\n)kind: Namespace\n/' "$1"; }

check_cluster() {
    kube version >/dev/null 2>&1 || fail "no Kubernetes API answers kubectl: check its context"
    kube get crd rayclusters.ray.io >/dev/null 2>&1 \
        || fail "KubeRay is not installed: docs/kubernetes.md, \"Prerequisites\""
    if grep -q '^apiVersion: kueue' "$1"; then
        kube get crd clusterqueues.kueue.x-k8s.io >/dev/null 2>&1 \
            || fail "Kueue is not installed: install it, or leave the component kueue out of the overlay"
    fi
    if grep -q 'registry\.invalid' "$1"; then
        echo "warning: images of k8s/site/site.env are still placeholders (registry.invalid)" >&2
    fi
}

check_secrets() {
    local missing=()
    for namespace in "$@"; do
        for secret in vagen-s3 vagen-mlflow; do
            [[ $secret == vagen-mlflow && $namespace != vagen ]] && continue
            kube --namespace "$namespace" get secret "$secret" >/dev/null 2>&1 \
                || missing+=("$namespace/$secret")
        done
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        fail "secrets are missing: ${missing[*]}; docs/kubernetes.md, \"Secrets\", has the commands"
    fi
}

await_ready() {
    local kind
    for kind in statefulset deployment; do
        kube --namespace vagen get "$kind" --selector app.kubernetes.io/part-of=vagen --output name \
            | while read -r name; do
                kube --namespace vagen rollout status "$name" --timeout "${TIMEOUT:-10m}" || {
                    kube --namespace vagen get pods
                    kube --namespace vagen get events --sort-by .lastTimestamp | tail -15
                    exit 1
                }
            done
    done
}

deploy() {
    check_cluster "$1"
    local names
    mapfile -t names < <(namespaces "$1")
    # Namespaces first: secrets are made in them before anything starts that reads them.
    awk 'BEGIN { RS = "---\n"; ORS = "---\n" } /(^|\n)kind: Namespace\n/' "$1" \
        | kube apply --server-side --field-manager vagen --filename -
    check_secrets "${names[@]}"
    # A finished job cannot be changed, only made anew; it makes the bucket if there is none.
    kube --namespace vagen delete job vagen-s3-bucket --ignore-not-found
    kube apply --server-side --force-conflicts --field-manager vagen --filename "$1"
    if kube get namespace "$(site KFP_NAMESPACE)" >/dev/null 2>&1; then
        kube apply --server-side --force-conflicts --field-manager vagen --kustomize kfp
    else
        echo "warning: there is no namespace $(site KFP_NAMESPACE); install Kubeflow Pipelines and deploy again" >&2
    fi
    # Environment variables are read when a container starts.
    kube --namespace vagen rollout restart deployment --selector app.kubernetes.io/part-of=vagen
    await_ready
    cat <<EOF

ready. MLflow:  kubectl --namespace vagen port-forward service/vagen-mlflow 5000
next:  make submit EXPERIMENT=frozenlake-tiny INFRA=... (docs/kubernetes.md)
EOF
}

undeploy() {
    local names running
    mapfile -t names < <(namespaces "$1")
    for namespace in "${names[@]}"; do
        running=$(kube --namespace "$namespace" get rayclusters --output name 2>/dev/null || true)
        [[ -z $running ]] || fail "runs are active in $namespace: $running; end them first"
    done
    if [[ ${YES:-} != 1 ]]; then
        read -r -p "Remove ${names[*]} from $(kube config current-context)? [y/N] " answer
        [[ $answer == [yY] ]] || fail "nothing was removed"
    fi
    without_namespaces "$1" | kube delete --ignore-not-found --wait --filename -
    if [[ ${DATA:-keep} == delete ]]; then
        kube delete namespace --ignore-not-found "${names[@]}"
    else
        echo "kept: namespaces ${names[*]} with their volumes and secrets; DATA=delete removes them"
    fi
}

[[ $# -eq 2 && $1 =~ ^(deploy|undeploy)$ ]] || fail "usage: k8s/deploy.sh deploy|undeploy OVERLAY"
overlay=overlays/$2
[[ -d $overlay ]] || overlay=$(realpath --canonicalize-missing "$start/$2")
[[ -f $overlay/kustomization.yaml ]] \
    || fail "no overlay $2: use one of $(cd overlays && echo *), or a folder that has a kustomization.yaml"
rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
kubectl kustomize "$overlay" >"$rendered"
"$1" "$rendered"
