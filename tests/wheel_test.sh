#!/usr/bin/env bash
# ./lapidary wheel: packs the finished build, compiles nothing. Usage: wheel_test.sh SOURCE_DIR BUILD_DIR CUDA(1|0) PYTHON
set -euo pipefail
source_dir=$1 python=$4
export LAPIDARY_BUILD_DIR=$2 LAPIDARY_CUDA=$3 LAPIDARY_INSTALL=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'FAILED: %s\n' "$*" && exit 1; }

wheel=$("$source_dir/lapidary" wheel "$scratch/dist" 2>"$scratch/err") || fail "$(<"$scratch/err")"
[[ -f $wheel && $wheel == "$scratch"/dist/lapidary-*-cp3*-linux_*.whl ]] || fail "stdout names no wheel: $wheel"
[[ ! -s $scratch/err ]] || fail "packing a finished build is not silent: $(<"$scratch/err")"

"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$scratch/site" "$wheel"
# No CUDA is needed to import it, whatever it was built with: that is loaded when a GPU is used.
needed=$(readelf --dynamic "$scratch"/site/lapidary/_core*.so | grep NEEDED)
[[ $needed != *cu[db]* ]] || fail "it needs CUDA: $needed"
cd "$scratch"
answer=$(PYTHONPATH=$scratch/site "$python" - <<'PYTHON'
import importlib.metadata
import lapidary
assert importlib.metadata.version("lapidary") == lapidary.__version__
[point] = importlib.metadata.distribution("lapidary").entry_points.select(group="lm_eval.models")
assert point.name == "lapidary"
question = [{"role": "user", "content": "What is 48 + 17?"}]
params = lapidary.SamplingParams(temperature=0, max_tokens=None)
print(lapidary.LLM(device="cpu", max_model_len=512).chat(question, params, use_tqdm=False)[0].outputs[0].text)
PYTHON
) || fail "the installed package does not run"
[[ $answer == "48 + 17 = 65" ]] || fail "it answered: $answer"
echo "ok"
