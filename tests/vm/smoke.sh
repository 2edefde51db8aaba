#!/usr/bin/env bash
# Steps as an ordinary user of a systemd host with cgroup v2: puts the built engine, the client and `guest/` together,
# and has the virtual machine run them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=${STEPBOX_BIN:-$root/target/release/stepbox}
cache=${STEPBOX_VM_CACHE:-$root/target/vm}

mkdir -p "$cache"
payload=$(mktemp -d "$cache/payload.XXXXXX")
trap 'rm -rf "$payload"' EXIT

cp "$here"/guest/* "$payload/"
cp "$binary" "$payload/stepbox"

# The machine has no network and no pip. Its interpreter is the same minor version as `.venv`'s, or the client stays out.
python=$root/.venv/bin/python
if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    mkdir "$payload/site"
    cp -r "$site/grpc" "$site/google" "$site"/typing_extensions.py "$payload/site/"
    cp -r "$root/adapters/python/src/stepbox" "$payload/site/"
fi

"$here/run.sh" "$cache" "$payload"
