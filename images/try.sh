#!/usr/bin/env bash
# Runs an image as a cluster would: images/try.sh IMAGE
#
# A user without rights, no capability, a read-only root file system, memory file systems for the
# few folders that may be written, no network. First `vagen doctor`, then a pipeline of one iteration.
set -euo pipefail

[[ $# -eq 1 ]] || { echo "usage: images/try.sh IMAGE" >&2; exit 2; }
tool=("${CONTAINER:-podman}")
# podman's default, crun, refuses machines with both versions of cgroups: RUNTIME=runc.
[[ -z ${RUNTIME:-} ]] || tool+=(--runtime "$RUNTIME")
sandbox=(run --rm --read-only --user 1000:1000 --cap-drop all --security-opt no-new-privileges
    --network "${NETWORK:-none}" --ulimit nofile=20000:20000 --ulimit nproc=30000:30000
    --tmpfs "/tmp:rw,mode=1777" --tmpfs "/home/vagen:rw,mode=1777"
    --tmpfs "/workspace/outputs:rw,mode=1777")

"${tool[@]}" "${sandbox[@]}" "$1" doctor
"${tool[@]}" "${sandbox[@]}" "$1" run frozenlake-tiny --infra laptop \
    trainer.total_training_steps=1 data.train_batch_size=8 rollout_manager.n_trajectory=2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 warm_start.steps=20 \
    envs.frozenlake.val_size=8 envs.frozenlake.test_size=8
"${tool[@]}" "${sandbox[@]}" --entrypoint bash "$1" -c \
    'id; if touch /opt/vagen/x 2>/dev/null; then echo "the root file system can be written"; exit 1; fi'
