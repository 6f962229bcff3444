#!/usr/bin/env bash
# Names an image in the site file: images/pin.sh cpu|env-service|trainer|judge NAME@sha256:DIGEST
set -euo pipefail
cd "$(dirname "$0")/../k8s/site"
declare -A variables=([cpu]=VAGEN_IMAGE [env-service]=VAGEN_ENV_IMAGE
    [trainer]=VAGEN_TRAINER_IMAGE [judge]=VAGEN_JUDGE_IMAGE)
[[ $# -eq 2 && -n ${variables[$1]:-} && $2 =~ @sha256:[0-9a-f]{64}$ ]] \
    || { echo "usage: images/pin.sh cpu|env-service|trainer|judge NAME@sha256:DIGEST" >&2; exit 2; }
sed -i "s|^${variables[$1]}=.*|${variables[$1]}=$2|" site.env
echo "k8s/site/site.env: ${variables[$1]}=$2"
