#!/usr/bin/env bash
# Runs every fuzzer, one after the other: the engine's targets under libFuzzer (what they find goes to
# target/fuzz/found/TARGET), hostile programs in real sandboxes, as root as an ordinary user too, and text for models.
#
#   fuzz.sh [TARGET...]     all of them, unless some are named; FUZZ_SECONDS (3600) is shared among them
#
# Nothing but the stable compiler is needed: its own switches count edges and comparisons.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
seconds=${FUZZ_SECONDS:-3600}
place=$root/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
python=$root/.venv/bin/python

mapfile -t targets < <(ls engine/fuzz/corpus)
targets+=(text sandbox)
[ "$(id -u)" -ne 0 ] || targets+=(sandbox-as-user)
[ $# -eq 0 ] || targets=("$@")
each=$((seconds / ${#targets[@]}))
mkdir -p "$place"

# For the targets that make files: in memory, where there is a place.
scratch=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" stepbox-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# With --target these are for the engine and not for build scripts.
switches=(--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table
    -C llvm-args=-sanitizer-coverage-trace-compares)
fuzzer=$place/$host/release/stepbox-fuzz
RUSTFLAGS="${switches[*]}" cargo build --release --locked --manifest-path engine/fuzz/Cargo.toml --target "$host" --target-dir "$place"

engine_target() {
    mkdir -p "$place/corpus/$1" "$place/found/$1"
    # Two corpora: what is new goes to the first, the second is the checkout's.
    STEPBOX_FUZZ_TARGET=$1 TMPDIR=$scratch "$fuzzer" -max_total_time="$each" -timeout=20 -rss_limit_mb=2048 \
        -max_len=4096 -print_final_stats=1 -artifact_prefix="$place/found/$1/" "$place/corpus/$1" "engine/fuzz/corpus/$1"
}

run() {
    case $1 in
        text) "$python" tests/fuzz_text.py "$each" ;;
        sandbox) "$python" tests/fuzz_sandbox.py "$each" ;;
        # Its environment is made anew, so what it needs is said in there.
        sandbox-as-user)
            tests/as_user.sh env STEPBOX_BIN="${STEPBOX_BIN:-}" PYTHONPATH="${PYTHONPATH:-}" "$python" tests/fuzz_sandbox.py "$each"
            ;;
        *) engine_target "$1" ;;
    esac
}

failed=()
for target in "${targets[@]}"; do
    log=$place/$target.log
    if run "$target" > "$log" 2>&1; then
        state=clean
    else
        state="NOT CLEAN, see $log"
        failed+=("$target")
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: */runs: /p; s/^\([0-9]* \(programs\|texts\)\).*/\1/p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/edges: \1, features: \2/p' "$log" | tail -n 1)
    printf '%-16s %5s s  %s  %s  %s\n' "$target" "$each" "$runs" "$coverage" "$state"
done
[ "${#failed[@]}" -eq 0 ]
