#!/usr/bin/env bash
# The tests, in parts. What a host cannot run is skipped, counted and named; STEPBOX_TEST_REQUIRE=all makes that a failure.
#
#   suite.sh unit      Rust, with its integration tests on the real kernel, and what needs no engine in Python
#   suite.sh cold      the shortest way through all of it: the client's and the adapters' everyday calls
#   suite.sh e2e       the client, the adapters, the examples and the documents' commands, against the real engine
#   suite.sh fallback  the client where no cgroup can be had: see without_cgroups.sh
#   suite.sh built     unit and e2e with what has been built: nothing is compiled and nothing is written to the checkout
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export STEPBOX_BIN=${STEPBOX_BIN:-$root/target/release/stepbox}
export PYTHONPATH=$root/tests
export PYTHONDONTWRITEBYTECODE=1

part() {
    local started=$SECONDS
    echo "--- $*"
    "$@"
    echo "--- $((SECONDS - started)) s"
}

# Runs the tests of one folder with that folder's own settings.
in_folder() {
    local folder=$1
    shift
    (cd "$folder" && "$root/.venv/bin/python" -m pytest --quiet -p no:cacheprovider -p counted_skips "$@")
}

# What `cargo test` runs, without cargo: a user without a toolchain can.
rust_built() {
    local executable
    while read -r executable; do
        (cd engine && "$root/$executable" --quiet)
    done < target/test-executables
}

rust() {
    cargo test --locked --quiet
}

python_unit() {
    for folder in adapters/*/; do
        in_folder "$folder" tests/unit
    done
}

client() {
    in_folder adapters/python tests/e2e "$@"
}

adapters() {
    for folder in adapters/*/; do
        [ ! -d "$folder/tests/integration" ] || in_folder "$folder" tests/integration
    done
}

documents() {
    in_folder tests .
}

reduced() {
    in_folder adapters/python tests/reduced
}

fallback() {
    in_folder adapters/python tests/fallback
}

demo() {
    "$root/.venv/bin/python" examples/demo.py > /dev/null
}

case ${1:-} in
    unit)
        part rust
        part python_unit
        ;;
    cold)
        part client tests/e2e/test_everyday_code.py
        part adapters
        ;;
    e2e)
        part client
        part reduced
        part adapters
        part documents
        part demo
        ;;
    fallback)
        part fallback
        part reduced
        ;;
    built)
        part rust_built
        part python_unit
        part client
        part reduced
        part adapters
        part documents
        ;;
    *)
        sed -n 's/^#   //p' "$0" >&2
        exit 2
        ;;
esac
