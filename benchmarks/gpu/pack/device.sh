#!/bin/bash
# On the GPU machine, in the checkout's root: bash benchmarks/gpu/pack/device.sh CALL (see ../README.md)
# Results go to $OUT/CALL. Packages are unpacked below $BASE, once.
set -u
DEADLINE=$(($(date +%s) + ${LIMIT:-280}))
CALL=${1:?local, vllm or verl}
BASE=${BASE:-/tmp/gpu} OUT=${OUT:-$PWD/benchmarks/results}/$CALL DEV=${DEV:-cuda} MODEL=${MODEL:-qwen25vl-1b} SIZES=${SIZES:-}
mkdir -p "$BASE/site" "$BASE/scratch" "$BASE/ray" "$OUT"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONPATH=$BASE/site:$PWD
export RAY_TMPDIR=$BASE/ray VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT=$BASE/vllm OUT

for part in verl vllm; do
    if [ -e .gpu/$part/site.tar.xz ] && [ ! -e "$BASE/$part-unpacked" ]; then
        python3 -W ignore -m tarfile -e .gpu/$part/site.tar.xz "$BASE/site" && touch "$BASE/$part-unpacked"
    fi
done
[ -e .gpu/verl/commit ] && cp -r .gpu/verl/commit .gpu/verl/g10-* "$BASE/scratch/"
VAGEN_COMMIT=$(cat "$BASE/scratch/commit")
export VAGEN_COMMIT

# measure SECONDS NAME COMMAND...: ends after so many seconds, on a CPU at the deadline
measure() {
    local seconds=$1 name=$2 left=$((DEADLINE - $(date +%s))) start
    shift 2
    [ $left -lt 15 ] && { echo "== $name: no time left"; return; }
    [ "$DEV" = cpu ] || [ "$seconds" -gt $left ] && seconds=$left
    start=$(date +%s)
    timeout -k 5 "$seconds" "$@" >"$BASE/$name.log" 2>&1
    echo "== $name: exit code $?, $(($(date +%s) - start)) s"
    tail -c 700 "$BASE/$name.log"
}

# check SECONDS NAME OPTIONS...: a check of benchmarks.gpu
check() {
    local seconds=$1 name=$2
    shift 2
    measure "$seconds" "$name" python3 -m benchmarks.gpu "$name" --device "$DEV" --model "$MODEL" \
        --scratch "$BASE/scratch" --output "$OUT" "$@"
}

case $CALL in
local) # the machine; the engine for one machine
    measure 40 probe python3 benchmarks/gpu/pack/probe.py
    # 16,384 tokens without recomputation do not fit beside three networks
    check 90 one --rollouts local actor_rollout_ref.actor.ppo_max_token_len=8192 $SIZES
    check 150 g10 ${G10:-}
    ;;
vllm) # Ray, verl and vLLM: everything of one started engine
    # CUDA graphs of decode steps without torch.compile: the server is up a minute and a half earlier
    graphs=infra.verl.extra.actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config
    graphs+="='{\"mode\": 0, \"cudagraph_mode\": \"FULL_DECODE_ONLY\"}'" # quoted: a string for verl
    check 275 one --rollouts "${ROLLOUT:-vllm}" "$graphs" $SIZES
    grep -hE 'Sleep mode freed|update_weights done|GPU KV cache|Graph capturing|init engine|Model loading took|FlashAttention|Error' \
        "$BASE/one.log" | tail -25 | cut -c1-220
    [ "$DEV" = cuda ] && timeout 20 python3 -m ray.scripts.scripts stop --force >/dev/null 2>&1 # what a limit cut off
    ;;
verl) # verl's network without servers; kernels of packed rows
    check 110 one --rollouts none $SIZES
    check 90 g1 --trajectories 16 --repeats 1 $SIZES
    ;;
*)
    echo "no call $CALL: local, vllm or verl" >&2
    exit 2
    ;;
esac
(cd "$BASE" && tar -czf "$OUT/logs.tgz" ./*.log)
ls -l "$OUT"
