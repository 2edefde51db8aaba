#!/usr/bin/env bash
# What must hold before anything runs: formatting, lints, types, and that generated code is current.
#
#   lint.sh FOLDER...      the folders of the Python packages
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin

cargo fmt --check
cargo clippy --locked --all-targets --quiet -- -D warnings
# What interpreters load is a crate of its own, and so is what runs the fuzz targets.
cargo fmt --check --manifest-path engine/template/Cargo.toml
cargo fmt --check --manifest-path engine/fuzz/Cargo.toml
CARGO_TARGET_DIR=target/template cargo clippy --manifest-path engine/template/Cargo.toml --quiet -- -D warnings

"$bin/python" adapters/python/scripts/generate_stubs.py --check
for folder in "$@"; do
    (
        cd "$folder"
        "$bin/ruff" check --quiet .
        "$bin/ruff" format --check --quiet .
        "$bin/mypy" --no-error-summary
    )
done
for folder in engine/src/bytecode examples tests; do
    "$bin/ruff" check --quiet "$folder"
    "$bin/ruff" format --check --quiet "$folder"
done
"$bin/mypy" --config-file tests/mypy.ini --no-error-summary tests/*.py tests/perf/*.py
for script in .ci/run tests/*.sh tests/vm/*.sh tests/vm/guest/main; do
    bash -n "$script"
done
