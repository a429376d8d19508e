#!/usr/bin/env bash
# Bad input to the commands: each gets one sentence on stderr, a non-zero exit, and no crash.
# Usage: bad_input_test.sh LAPIDARY
set -uo pipefail

lapidary=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# refuses NAME PATTERN ARGUMENTS...: exit code 1 or 2, one line on stderr that matches, empty stdout.
refuses() {
  local name=$1 pattern=$2 code=0
  shift 2
  timeout 60 "$lapidary" "$@" >"$work/stdout" 2>"$work/stderr" || code=$?
  grep -a -v '^[0-9:.]* I ' "$work/stderr" >"$work/message"
  if [[ $code -ne 1 && $code -ne 2 ]]; then
    echo "FAIL $name: exit code $code"
  elif ! grep -a -q -- "$pattern" "$work/message"; then
    echo "FAIL $name: stderr does not say '$pattern'"
  elif [[ -s $work/stdout ]]; then
    echo "FAIL $name: something on stdout"
  elif [[ $code -eq 1 && $(wc -l <"$work/message") -ne 1 ]]; then
    echo "FAIL $name: not one sentence"
  else
    return
  fi
  sed 's/^/     /' "$work/stderr" | head -5
  failures=$((failures + 1))
}

# copy NAME: a fresh copy of the good checkpoint.
copy() {
  cp -r "$work/good" "$work/$1"
}

generate() {
  local name=$1 pattern=$2 model=$3
  shift 3
  refuses "$name" "$pattern" generate "$model" --ids 2,5,9 --max-tokens 2 "$@"
}

"$lapidary" synth --preset tiny-e --seed 1 --out "$work/good" 2>/dev/null || exit 1
size=$(stat -c %s "$work/good/model.safetensors")

copy truncated && truncate -s $((size / 2)) "$work/truncated/model.safetensors"
generate "truncated weights" "truncated" "$work/truncated"
copy empty && : >"$work/empty/model.safetensors"
generate "empty weights" "too few" "$work/empty"
copy longer && echo tail >>"$work/longer/model.safetensors"
generate "trailing bytes" "after the last tensor" "$work/longer"
copy flipped && printf '\xff' | dd of="$work/flipped/model.safetensors" bs=1 seek=40 conv=notrunc 2>/dev/null
generate "bit flips in the header" "safetensors header" "$work/flipped"
copy length && printf '\xff\xff\xff\xff\xff\xff\xff\x7f' | dd of="$work/length/model.safetensors" bs=1 conv=notrunc 2>/dev/null
generate "absurd header length" "does not fit" "$work/length"

copy shapes && sed -i 's/"hidden_size": 96/"hidden_size": 128/' "$work/shapes/config.json"
generate "wrong shapes" "has shape" "$work/shapes"
copy layers && sed -i 's/"num_kv_shared_layers": 4/"num_kv_shared_layers": 3/' "$work/layers/config.json"
generate "missing tensors" "tensors are missing\|has shape" "$work/layers"
copy arch && sed -i 's/Gemma4ForCausalLM/LlamaForCausalLM/' "$work/arch/config.json"
generate "unknown architecture" "not Gemma 4" "$work/arch"
copy json && echo '{' >"$work/json/config.json"
generate "broken config" "not valid JSON" "$work/json"
for number in 0 -1 999999999999 1e300 '"many"' null; do
  rm -rf "$work/absurd" && copy absurd
  sed -i "s/\"hidden_size\": 96/\"hidden_size\": $number/" "$work/absurd/config.json"
  generate "hidden_size $number" "hidden_size" "$work/absurd"
done
copy noconfig && rm "$work/noconfig/config.json"
generate "no config" "config.json" "$work/noconfig"
copy noweights && rm "$work/noweights/model.safetensors"
generate "no weights" "holds no model.safetensors" "$work/noweights"

"$lapidary" synth --preset tiny-e --seed 1 --shard-gb 0.003 --out "$work/sharded" 2>/dev/null
"$lapidary" generate "$work/sharded" --ids 2,5,9 --max-tokens 2 >/dev/null 2>&1 || {
  echo "FAIL sharded checkpoint does not run" && failures=$((failures + 1))
}
rm "$work/sharded/model-00002-of-"*
generate "missing shard" "cannot open" "$work/sharded"

generate "no such directory" "neither a checkpoint directory, nor a GGUF file, nor a preset" "$work/nowhere"
HF_HUB_OFFLINE=1 HF_HOME="$work/hf" generate "a short name without weights" "lapidary pull e2b" e2b
generate "a preset without weights" "load-format dummy" tiny-e
generate "a file instead of its directory" "name its directory, $work/good" "$work/good/model.safetensors"
generate "a file that is not there" "there is no file" "$work/nowhere.gguf"
copy pointer && printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n' >"$work/pointer/model.safetensors"
generate "a git-lfs pointer" "git lfs pull" "$work/pointer"
refuses "id out of range" "outside the vocabulary" generate "$work/good" --ids 2,512 --max-tokens 2
refuses "negative id" "outside the vocabulary" generate "$work/good" --ids=-7 --max-tokens 2
refuses "ids that are no numbers" "not a list of token ids" generate "$work/good" --ids 2,x --max-tokens 2
refuses "empty prompt" "empty" generate "$work/good" --ids "" --max-tokens 2
refuses "beyond the context" "context" generate "$work/good" --ids 2,5 --max-tokens 5000
refuses "unknown flag" "--nonsense: generate has no such flag" generate "$work/good" --ids 2 --nonsense
refuses "mistyped flag" "the nearest is --max-tokens" generate "$work/good" --ids 2 --max-token 5
refuses "mistyped command" "the nearest is 'serve'" sreve "$work/good"
refuses "llama.cpp's -m" "the model is named without a flag" serve -m "$work/good"
refuses "llama.cpp's -c" "--max-model-len N" serve "$work/good" -c 4096
refuses "llama.cpp's -ngl" "--device auto, cuda or cpu" chat "$work/good" -ngl 99
refuses "llama.cpp's -t" "--threads N" chat "$work/good" -t 8
refuses "llama.cpp's -np" "--max-num-seqs N" serve "$work/good" -np 4
refuses "a KV cache beyond the machine" "is more than the" serve "$work/good" --device cpu --kv-cache-memory-bytes 900TB
refuses "unknown preset" "no preset" synth --preset tiny-x --out "$work/x"
refuses "a directory in use" "not an empty directory" synth --preset tiny-e --out "$work/good"
refuses "unwritable output" "cannot" logits "$work/good" --ids 2,5 --output "$work/nowhere/f.npy"
CUDA_VISIBLE_DEVICES= refuses "no memory figure" "--memory" plan e2b
refuses "ranks that do not divide" "attention heads cannot be shared out evenly; 1, 2, 4 work" \
  generate "$work/good" --ids 2 --device cpu -tp 3
refuses "ranks beyond the most" "tensor-parallel-size" generate "$work/good" --ids 2 -tp 9
refuses "ranks on a GPU" "a model runs on one GPU" plan e2b --memory 80GB --device cuda -tp 2
refuses "ranks of an inspected model" "1, 2, 4, 8 work" inspect 12b -tp 3
refuses "nonsense memory" "not an amount of memory" plan e2b --memory lots
if [[ $(id -u) -ne 0 ]]; then
  copy secret && chmod 000 "$work/secret"
  generate "unreadable directory" "cannot" "$work/secret"
  chmod 700 "$work/secret"
else
  echo "note: running as root, so the unreadable directory was not tried"
fi

if [[ $failures -gt 0 ]]; then
  echo "$failures of the refusals are wrong"
  exit 1
fi
echo "every bad input was refused in one sentence"
