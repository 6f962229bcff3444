#!/usr/bin/env bash
# Brings an overlay to a cluster, or takes it away: k8s/deploy.sh deploy|undeploy OVERLAY
#
# OVERLAY is a name under k8s/overlays or a folder with a kustomization of your own. Environment:
#   CONTEXT       of kubectl; the current one
#   TIMEOUT       for the platform to become ready; 10m
#   OPEN_HTTPS=1  deploy although HTTPS_CIDR is everything
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

# A value of the site as the overlay has it.
site() { sed -n "s/^  $1: \"\?\([^\"]*\)\"\?$/\1/p" "$rendered" | head -1; }

namespaces() { awk '/^kind: Namespace$/ { found = 1 } found && /^  name:/ { print $2; found = 0 }' "$1"; }

# without KINDS FILE: all other objects. KINDS is a regular expression.
without() { awk -v kinds="$1" 'BEGIN { RS = ORS = "---\n" } $0 !~ "(^|\n)kind: (" kinds ")\n"' "$2"; }

problems=()
problem() { problems+=("$*"); }

# Everything that is wrong, before anything is changed.
check() {
    kube version >/dev/null 2>&1 || fail "no Kubernetes API answers kubectl: check its context"
    check_images "$1"
    check_version KubeRay 1.6 deployments --all-namespaces \
        --selector 'app.kubernetes.io/name in (kuberay-operator, kuberay)'
    if grep -q '^apiVersion: kueue' "$1"; then
        check_version Kueue 0.15 deployments --all-namespaces \
            --selector 'app.kubernetes.io/name=kueue,control-plane=controller-manager'
    fi
    check_version "Kubeflow Pipelines" 2.17 deployments --all-namespaces \
        --field-selector metadata.name=ml-pipeline
    check_addresses
    if grep -q '^kind: Ingress$' "$1" && [[ "$(site MLFLOW_HOST) $(site OIDC_ISSUER)" == *.example.com* ]]; then
        problem "MLFLOW_HOST or OIDC_ISSUER in k8s/site/site.env is a placeholder: name yours"
    fi
    check_secrets "$1"
    [[ ${#problems[@]} -gt 0 ]] || check_admission "$1"
    [[ ${#problems[@]} -eq 0 ]] || {
        printf 'Nothing was changed. Before this can be deployed:\n' >&2
        printf -- '- %s\n' "${problems[@]}" >&2
        exit 2
    }
}

check_images() {
    local image
    while read -r image; do
        problem "the image $image is a placeholder: build and push yours (docs/images.md), and name it" \
            "in k8s/site/site.env"
    done < <(sed -n 's/.*image: .*\(registry\.invalid[^" ]*\).*/\1/p' "$1" | sort -u)
}

# check_version NAME OLDEST WHAT...: the tag of the image that a deployment has.
check_version() {
    local name=$1 oldest=$2 image found
    image=$(kube get "${@:3}" --output 'jsonpath={..containers[*].image}' 2>/dev/null) || image=
    if [[ -z $image ]]; then
        problem "$name is not installed: $oldest or newer is needed (docs/kubernetes.md, Prerequisites)"
        return
    fi
    found=$(grep -oE ':v?[0-9]+(\.[0-9]+)+' <<<"$image" | head -1 | tr -d :v) || found=
    if [[ -z $found ]]; then
        echo "warning: the version of $name cannot be told from its image ${image%% *}" >&2
    elif [[ $(printf '%s\n' "$oldest" "$found" | sort -V | head -1) != "$oldest" ]]; then
        problem "$name is $found here: $oldest or newer is needed"
    fi
}

# Whom pods may reach: the API server and nobody else, HTTPS where it must be.
check_addresses() {
    local api port range
    range=$(site KUBE_API_CIDR)
    api=$(kube --namespace default get endpointslices --selector kubernetes.io/service-name=kubernetes \
        --output 'jsonpath={.items[*].endpoints[*].addresses[*]}' 2>/dev/null) || api=
    port=$(kube --namespace default get endpointslices --selector kubernetes.io/service-name=kubernetes \
        --output 'jsonpath={.items[0].ports[0].port}' 2>/dev/null) || port=
    if [[ -z $api ]]; then
        echo "warning: the API server's address may not be read; KUBE_API_CIDR=$range was not checked" >&2
    elif [[ $range == */0 || $port != "$(site KUBE_API_PORT)" ]] || ! contains "$range" "$api"; then
        problem "the API server is at $api, port $port: in k8s/site/site.env KUBE_API_CIDR must be a" \
            "range that holds that and little else (${api%% *}/32), KUBE_API_PORT=$port"
    fi
    if [[ $(site HTTPS_CIDR) == */0 && ${OPEN_HTTPS:-} != 1 ]]; then
        problem "HTTPS_CIDR lets runs send data to everybody: name the store's, a mirror's or a proxy's" \
            "range in k8s/site/site.env, or set OPEN_HTTPS=1 to accept it"
    elif [[ $(site HTTPS_CIDR) == 192.0.2.0/24 ]]; then
        echo "warning: HTTPS_CIDR is nobody's range: runs reach no store or model outside of the cluster" >&2
    fi
}

contains() {
    python3 -c 'import sys, ipaddress as ip
sys.exit(any(ip.ip_address(one) not in ip.ip_network(sys.argv[1], False) for one in sys.argv[2].split()))' "$@"
}

# The secrets that something in a namespace must have; optional ones are not asked for.
check_secrets() {
    local namespace secret wanted missing=() keys=(vagen-s3) steps own
    # With the component `identity` pods have no keys of the store.
    ! grep -q ' eks.amazonaws.com/role-arn: ' "$1" || keys=()
    steps=("${keys[@]}")
    own=("${keys[@]}" vagen-ray-token vagen-mlflow ${keys[0]:+vagen-mlflow-s3})
    ! grep -q '^  name: vagen-s3-bucket$' "$1" || own+=(vagen-s3-admin)
    ! grep -q '^  name: vagen-backup$' "$1" || own+=(vagen-backup)
    ! grep -q '^  name: vagen-judge$' "$1" || own+=(vagen-judge)
    ! grep -q '^  name: vagen-env$' "$1" || { own+=(vagen-env) && steps+=(vagen-env); }
    ! grep -q -- '--app-name=basic-auth$' "$1" || own+=(vagen-mlflow-auth)
    ! grep -q '^  name: vagen-oauth2-proxy$' "$1" || own+=(vagen-oauth2-proxy vagen-mlflow-tls)
    ! grep -q '^  name: vagen-agent$' "$1" || { own+=(vagen-agent) && steps+=(vagen-agent); }
    for namespace in $(namespaces "$1") "$(site KFP_NAMESPACE)"; do
        case $namespace in
            "$home") wanted=("${own[@]}") ;;
            "$(site KFP_NAMESPACE)") wanted=("${steps[@]}") ;;
            *) wanted=("${keys[@]}" vagen-ray-token) ;;
        esac
        ! grep -q '^- name: vagen-pull$' "$1" || wanted+=(vagen-pull)
        for secret in "${wanted[@]}"; do
            kube --namespace "$namespace" get secret "$secret" >/dev/null 2>&1 \
                || missing+=("$namespace/$secret")
        done
    done
    [[ ${#missing[@]} -eq 0 ]] \
        || problem "secrets are missing: ${missing[*]} (docs/kubernetes.md, Secrets, has the commands)"
}

# What the API server would say to each object, before any is changed. A job is made anew.
check_admission() {
    local line name
    while read -r line; do
        case $line in
            *"updates to statefulset spec"*)
                name=$(grep -oE '"[a-z0-9-]+" is invalid' <<<"$line" | cut -d'"' -f2)
                problem "the StatefulSet $name has fields that cannot be changed. Its pod and its volume outlive it:" \
                    "kubectl --namespace $home delete statefulset $name --cascade=orphan, then deploy again"
                ;;
            *) problem "the API server refuses: $line" ;;
        esac
    done < <({
        without Job "$1" | apply --dry-run=server --filename -
        apply --dry-run=server --kustomize "$kfp"
    } 2>&1 >/dev/null | grep -v '^Warning:')
}

apply() { kube apply --server-side --force-conflicts --field-manager vagen "$@"; }

await_ready() {
    local kind job
    for kind in statefulset deployment; do
        kube --namespace "$home" get "$kind" --selector 'app.kubernetes.io/part-of=vagen,!vagen.dev/agent' --output name \
            | while read -r name; do
                kube --namespace "$home" rollout status "$name" --timeout "${TIMEOUT:-10m}" || {
                    kube --namespace "$home" get pods
                    kube --namespace "$home" get events --sort-by .lastTimestamp | tail -15
                    exit 1
                }
            done
    done
    job=$(kube --namespace "$home" get job vagen-s3-bucket --ignore-not-found --output name)
    [[ -z $job ]] || kube --namespace "$home" wait "$job" --for condition=complete \
        --timeout "${TIMEOUT:-10m}" || fail "no bucket: kubectl --namespace $home logs $job"
}

deploy() {
    check "$1"
    # A finished job cannot be changed, only made anew; it makes the bucket if there is none.
    kube --namespace "$home" delete job vagen-s3-bucket --ignore-not-found
    apply --filename "$1"
    apply --kustomize "$kfp"
    # Environment variables are read when a container starts.
    kube --namespace "$home" rollout restart deployment --selector 'app.kubernetes.io/part-of=vagen,!vagen.dev/agent'
    await_ready
    cat <<EOF

ready. MLflow:  kubectl --namespace $home port-forward service/vagen-mlflow 5000
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
        printf 'Remove %s from %s? [y/N] ' "${names[*]}" "${CONTEXT:-$(kubectl config current-context)}" >&2
        read -r answer || true
        [[ $answer == [yY] ]] || fail "nothing was removed"
    fi
    without 'Namespace|PersistentVolumeClaim' "$1" | kube delete --ignore-not-found --wait --filename -
    if [[ ${DATA:-keep} == delete ]]; then
        kube delete namespace --ignore-not-found "${names[@]}"
    else
        echo "kept: namespaces ${names[*]} with their volumes and secrets; DATA=delete removes them"
    fi
}

[[ $# -eq 2 && $1 =~ ^(deploy|undeploy)$ ]] || fail "usage: k8s/deploy.sh deploy|undeploy OVERLAY"
overlay=overlays/$2
[[ -d $overlay ]] || overlay=$(cd "$start" && realpath --canonicalize-missing "$2")
[[ -f $overlay/kustomization.yaml ]] \
    || fail "no overlay $2: use one of $(cd overlays && echo *), or a folder that has a kustomization.yaml"
rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
kubectl kustomize "$overlay" >"$rendered"
# Where MLflow is; a tenant has a namespace of its own, and variables of its own for Kubeflow's.
home=$(awk 'BEGIN { RS = "---\n" } /\nkind: Service\n/ && /\n  name: vagen-mlflow\n/' "$rendered" | sed -n 's/^  namespace: //p')
kfp=kfp
[[ ! -d $overlay/kfp ]] || kfp=$overlay/kfp
"$1" "$rendered"
