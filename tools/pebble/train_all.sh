#!/bin/bash
# Trains all three models at once on one GPU, each with its assistant, evaluation and card:
#
#     ./train_all.sh OUT TARGET_MINUTES ASSISTANT_MINUTES
#
# OUT/MODEL gets the two model folders, the answers and the logs; OUT/MODEL/done appears when all of it went well.
cd "$(dirname "$0")" || exit 1
out=$1 target=${2:-8} assistant=${3:-1.5}

one() {
    local model=$1 dir=$out/$1
    mkdir -p "$dir"
    python3 train.py "$model" "$dir" --graph --minutes "$target" >"$dir/train.log" 2>&1 || return 1
    # The evaluation needs little of the GPU: it runs beside the assistant's training.
    python3 evaluate.py "$model" "$dir/$model" "$dir" >"$dir/evaluate.log" 2>&1 &
    local evaluation=$!
    python3 assistant.py "$model" "$dir/$model" "$dir" --no-compile --graph --minutes "$assistant" >"$dir/assistant.log" 2>&1 || return 1
    wait $evaluation && python3 card.py "$model" "$dir" && touch "$dir/done"
}

for model in pebble-e pebble-moe pebble-dense; do
    one $model &
done
wait
ls "$out"/pebble-{e,moe,dense}/done
