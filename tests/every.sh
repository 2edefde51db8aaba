#!/usr/bin/env bash
# Runs the parts of `make test` one after another, all of them whatever fails, and sums up.
#
#   every.sh PART...      targets of the Makefile
set -euo pipefail
cd "$(dirname "$0")/.."

code=0
summary=
for part in "$@"; do
    begun=$SECONDS
    if "${MAKE:-make}" --no-print-directory "$part"; then
        verdict=passed
    else
        verdict=FAILED
        code=1
    fi
    summary+=$(printf '%-10s %s in %d s' "$part" "$verdict" $((SECONDS - begun)))$'\n'
done
printf '\n%s%s in %d s\n' "$summary" "$([ "$code" -eq 0 ] && echo 'all passed' || echo 'NOT all passed')" "$SECONDS"
exit "$code"
