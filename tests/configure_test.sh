#!/usr/bin/env bash
# A system whose libraries are too old is told which. Usage: configure_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# refuses PACKAGE VERSION SENTENCE: so old a PACKAGE is refused in one sentence.
refuses() {
  printf 'Name: %s\nDescription: old\nVersion: %s\n' "$1" "$2" >"$scratch/$1.pc"
  if PKG_CONFIG_PATH=$scratch cmake -S "$source_dir" -B "$scratch/build" -DLAPIDARY_TESTS=OFF -DLAPIDARY_BENCHMARKS=OFF \
    >"$scratch/log" 2>&1 || ! tr -s ' \n' ' ' <"$scratch/log" | grep -qF -- "$3"; then
    echo "FAILED: $1 $2 must be refused with: $3" && sed 's/^/  /' "$scratch/log" && exit 1
  fi
  rm -r "$scratch/$1.pc" "$scratch/build" # what was found is cached
  echo "ok: $1 $2 is refused"
}

refuses libcurl 7.81.0 "libcurl 7.85 or newer (libcurl4-openssl-dev) is missing"
refuses libhwy 0.17.0 "Highway 1.0 or newer (libhwy-dev) is missing"
