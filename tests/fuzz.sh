#!/usr/bin/env bash
# Runs the engine's fuzz targets under libFuzzer one after the other, and what they find goes to target/fuzz/found/TARGET.
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

# For the targets that make files: in memory, where there is a place.
scratch=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" stepbox-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# With --target these are for the engine and not for build scripts.
switches=(--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table
    -C llvm-args=-sanitizer-coverage-trace-compares)
RUSTFLAGS="${switches[*]}" cargo build --release --locked --manifest-path engine/fuzz/Cargo.toml --target "$host" --target-dir "$place"
fuzzer=$place/$host/release/stepbox-fuzz

mapfile -t targets < <(ls engine/fuzz/corpus)
[ $# -eq 0 ] || targets=("$@")
each=$((seconds / ${#targets[@]}))
failed=()
for target in "${targets[@]}"; do
    mkdir -p "$place/corpus/$target" "$place/found/$target"
    log=$place/$target.log
    # Two corpora: what is new goes to the first, the second is the checkout's.
    if STEPBOX_FUZZ_TARGET=$target TMPDIR=$scratch "$fuzzer" -max_total_time="$each" -timeout=20 -rss_limit_mb=2048 \
        -max_len="${FUZZ_MAX_LEN:-4096}" -print_final_stats=1 -artifact_prefix="$place/found/$target/" \
        "$place/corpus/$target" "engine/fuzz/corpus/$target" > "$log" 2>&1; then
        state=clean
    else
        state="NOT CLEAN, see $log"
        failed+=("$target")
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 edges, \2 features/p' "$log" | tail -n 1)
    printf '%-16s %5s s %12s runs  %s  %s\n' "$target" "$each" "${runs:-?}" "${coverage:-?}" "$state"
done
[ "${#failed[@]}" -eq 0 ]
