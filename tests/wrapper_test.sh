#!/usr/bin/env bash
# ./lapidary as its users call it. Usage: wrapper_test.sh WRAPPER BUILD_DIR CUDA(1|0)
# Runs against a finished build, so that nothing is installed, configured or compiled here.
set -euo pipefail
wrapper=$1
export LAPIDARY_BUILD_DIR=$2 LAPIDARY_CUDA=$3 LAPIDARY_INSTALL=0

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# run COMMAND...: leaves its exit code in code, its output in the files out and err.
run() {
  code=0
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
}

# expect WHAT CONDITION...: CONDITION is a command that must succeed.
expect() {
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    failures=$((failures + 1))
    echo "FAILED: $what (exit code $code)"
    sed 's/^/  stdout: /' "$scratch/out"
    sed 's/^/  stderr: /' "$scratch/err"
  fi
}
exits_with() { ((code == $1)); }
out_has() { grep -qF -- "$1" "$scratch/out"; }
err_has() { grep -qF -- "$1" "$scratch/err"; }
is_empty() { [[ ! -s $scratch/$1 ]]; }

run "$wrapper" --version
expect "the first run succeeds" exits_with 0
expected=$(<"$scratch/out")

cd /
run "$wrapper" --version
expect "it works from another directory" exits_with 0
expect "stdout is the program's alone" test "$(<"$scratch/out")" = "$expected"
expect "an up-to-date build is silent" is_empty err

mkdir "$scratch/with spaces"
ln -s "$wrapper" "$scratch/with spaces/a link"
run "$scratch/with spaces/a link" --version
expect "it works through a symlink in a path with spaces" test "$(<"$scratch/out")" = "$expected"

cd "$scratch/with spaces"
ln -s "$LAPIDARY_BUILD_DIR" "build link"
LAPIDARY_BUILD_DIR="build link" run "$wrapper" --version
expect "the build directory may be relative" test "$(<"$scratch/out")" = "$expected"

run "$wrapper" --help
expect "--help succeeds" exits_with 0
expect "--help mentions the tests" out_has "./lapidary test"
run "$wrapper" test --help
expect "test --help succeeds" exits_with 0
expect "test --help explains the labels" out_has "-L LABEL"
run "$wrapper" package --help
expect "package --help succeeds" exits_with 0
expect "package --help says where the packages go" out_has "dist/"
run "$wrapper" package --fast
expect "package refuses an unknown flag" exits_with 1
expect "and names it" err_has "'--fast'"
run "$wrapper" test --sanitize memory
expect "an unknown sanitizer is refused" exits_with 1
expect "and the known ones are named" err_has "'thread' or 'address', got 'memory'"
run "$wrapper" no-such-command
expect "an unknown command exits with 2" exits_with 2
expect "an unknown command is named" err_has "no-such-command"
expect "an error leaves stdout empty" is_empty out

LAPIDARY_CUDA=maybe run "$wrapper" --version
expect "a bad LAPIDARY_CUDA is refused" exits_with 1
expect "and explained" err_has "must be 1 or 0"

run readelf --dynamic --program-headers --wide "$LAPIDARY_BUILD_DIR/lapidary"
expect "the program is bound before it runs" out_has BIND_NOW
expect "and its tables are read-only then" out_has GNU_RELRO
expect "it lies anywhere in memory" out_has "Position-Independent Executable"
run readelf --dyn-syms --wide "$LAPIDARY_BUILD_DIR/lapidary"
expect "what runs over an array on the stack ends it" out_has __stack_chk_fail
expect "and what runs over a buffer of known size" out_has __memcpy_chk

# Two at once: both must get through, whoever takes the lock first.
"$wrapper" --version >"$scratch/other" 2>/dev/null &
run "$wrapper" --version
wait $!
expect "concurrent runs both succeed" test "$(cat "$scratch/out" "$scratch/other")" = \
  "$expected"$'\n'"$expected"

# A long-running program must not keep others from building.
exec {build_lock}<"$LAPIDARY_BUILD_DIR/.lock"
expect "the lock is free afterwards" flock --nonblock "$build_lock"

# A first run, with a compiler that only says what it would do.
mkdir "$scratch/bin" "$scratch/fresh"
cat >"$scratch/bin/cmake" <<'STUB'
#!/usr/bin/env bash
seq 1 100
touch "$LAPIDARY_BUILD_DIR/build.ninja"
STUB
cat >"$scratch/bin/ninja" <<'STUB'
#!/usr/bin/env bash
[[ $* != build.ninja && ! -e lapidary ]] || exit 0
for step in {1..300}; do echo "[$step/300] Building CXX object $step.o"; done
[[ " $* " != *' -n '* ]] || exit 0
if [[ -n ${STUB_FAILS:-} ]]; then
  echo "FAILED: 300.o" && exit 1
fi
printf '#!/bin/sh\necho built\n' >lapidary
chmod +x lapidary
STUB
chmod +x "$scratch/bin/cmake" "$scratch/bin/ninja"
first_run() {
  LAPIDARY_BUILD_DIR=$scratch/fresh LAPIDARY_CUDA=0 PATH=$scratch/bin:$PATH run "$wrapper"
}
STUB_FAILS=1 first_run
expect "a build that fails is an error" exits_with 1
expect "and shows what failed" err_has "FAILED: 300.o"
first_run
expect "a first run builds and runs" out_has built
expect "it says how much there is to do" err_has "300 steps"
expect "it says how far it is" err_has "built 50%"
expect "and that in few lines" test "$(wc -l <"$scratch/err")" -lt 15

# Somebody else's build is used as it is.
as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if ((EUID == 0)) && "${as_nobody[@]}" test -x "$LAPIDARY_BUILD_DIR/lapidary" -a -x "$wrapper"; then
  run "${as_nobody[@]}" "$wrapper" --version
  expect "whoever did not build it can run it" test "$(<"$scratch/out")" = "$expected"
  chmod 755 "$scratch" "$scratch/fresh"
  rm "$scratch/fresh/lapidary"
  LAPIDARY_BUILD_DIR=$scratch/fresh run "${as_nobody[@]}" "$wrapper"
  expect "where nothing is built, they are told" err_has "LAPIDARY_BUILD_DIR can name another directory"
else
  echo "note: not as root, or in a directory of root's own: another user was not tried"
fi

exit $((failures > 0))
