#!/usr/bin/env bash
# Runs an image as a cluster would: images/try.sh IMAGE
#
# A user without rights, no capability, a read-only root file system, memory file systems for the
# few folders that may be written, no network. First what is installed, against this checkout; then
# `vagen doctor`, a pipeline of two iterations by kfp.local, and an attempt to write to the root.
set -euo pipefail
cd "$(dirname "$0")/.."

[[ $# -eq 1 ]] || { echo "usage: images/try.sh IMAGE" >&2; exit 2; }
tool=("${CONTAINER:-podman}")
# podman's default, crun, refuses machines with both versions of cgroups: RUNTIME=runc.
[[ -z ${RUNTIME:-} ]] || tool+=(--runtime "$RUNTIME")
sandbox=(run --rm --read-only --user 1000:1000 --cap-drop all --security-opt no-new-privileges
    --network "${NETWORK:-none}" --ulimit nofile=20000:20000 --ulimit nproc=30000:30000
    --tmpfs "/tmp:rw,mode=1777" --tmpfs "/home/vagen:rw,mode=1777"
    --tmpfs "/workspace/outputs:rw,mode=1777")
[[ -z ${VOLUME:-} ]] || sandbox+=(--volume "$VOLUME")

digest=$(python3 -c 'import components; print(components.digest())')
"${tool[@]}" "${sandbox[@]}" --interactive --entrypoint python "$1" \
    - "$digest" "$(git ls-files vagen components pipelines)" <images/installed.py
"${tool[@]}" "${sandbox[@]}" "$1" doctor
"${tool[@]}" "${sandbox[@]}" "$1" run frozenlake-tiny --infra laptop --pipeline \
    trainer.total_training_steps=2 data.train_batch_size=8 rollout_manager.n_trajectory=2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 warm_start.steps=20 warm_start.episodes=64 \
    envs.frozenlake.val_size=8 envs.frozenlake.test_size=8
"${tool[@]}" "${sandbox[@]}" --entrypoint bash "$1" -c \
    'id; if touch /opt/vagen/x 2>/dev/null; then echo "the root file system can be written"; exit 1; fi'
