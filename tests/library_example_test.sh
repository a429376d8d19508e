#!/usr/bin/env bash
# The installed library as a stranger meets it. Usage: library_example_test.sh SOURCE_DIR BUILD_DIR CXX
set -euo pipefail
source_dir=$1 build_dir=$2
export CXX=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'FAILED: %s\n' "$*" && exit 1; }

cmake --install "$build_dir" --component library --prefix "$scratch/prefix" >/dev/null
expected=$(cd "$source_dir/include" && find lapidary -type f | sort)
installed=$(cd "$scratch/prefix/include" && find . -type f -printf '%P\n' | sort)
[[ $installed == "$expected" ]] || fail "the headers installed are: $installed"

library=$(find "$scratch/prefix" -name 'liblapidary.so')
[[ -n $library ]] || fail "there is no liblapidary.so"
strangers=$(nm -D --defined-only -C "$library" | grep -vE ' (typeinfo (name )?for |vtable for )?lapidary::v0::' || true)
[[ -z $strangers ]] || fail "the library exports more than its interface: $strangers"

# Two questions: a program that is built against the install tree alone, then run on the bundled model.
cmake -S "$source_dir/examples/answer" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/build" >"$scratch/log" || fail "the example does not build: $(<"$scratch/log")"
answer=$("$scratch/build/answer" "$source_dir/models/pebble-e" 'What is 48 + 17?')
[[ $answer == "48 + 17 = 65" ]] || fail "it answered: $answer"

code=0
"$scratch/build/answer" /no/such/model 'Hello?' 2>"$scratch/err" || code=$?
((code == 1)) || fail "a model that is not there exits with $code"
grep -q '/no/such/model' "$scratch/err" || fail "the error does not name the model: $(<"$scratch/err")"
echo "ok"
