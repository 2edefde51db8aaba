#!/usr/bin/env bash
# Steps on a systemd host with cgroup v2: puts the built engine, the client and `guest/` together, and has the virtual
# machine run them. STEPBOX_VM_ARCH, STEPBOX_VM_USER and STEPBOX_VM_KERNEL choose the machine, see run.sh.
#
#   smoke.sh [PROGRAM [TEST...]]     PROGRAM is one of `guest/`: smoke.py, or containers.py
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
architecture=${STEPBOX_VM_ARCH:-x86_64}
binary=${STEPBOX_BIN:-$root/target/release/stepbox}
[ "$architecture" = x86_64 ] || binary=${STEPBOX_VM_BIN:-$root/target/$architecture-unknown-linux-gnu/release/stepbox}
cache=${STEPBOX_VM_CACHE:-$root/target/vm}

mkdir -p "$cache"
payload=$(mktemp -d "$cache/payload.XXXXXX")
trap 'rm -rf "$payload"' EXIT

cp "$here"/guest/* "$payload/"
cp "$binary" "$payload/stepbox"
echo "${*:-smoke.py}" > "$payload/program"

# The machine has no network and no pip. Its interpreter is the same minor version as `.venv`'s, or the client stays out.
python=$root/.venv/bin/python
if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    if [ "$architecture" != "$(uname -m)" ]; then
        # The same versions, built for the machine.
        needs=$("$python" -m pip freeze --disable-pip-version-check | grep -E '^(grpcio|protobuf|googleapis-common-protos|grpcio-status|typing_extensions)==')
        site=$cache/site-$architecture-$(sha256sum <<< "$needs" | cut -c1-12)
        if [ ! -d "$site" ]; then
            echo "fetching what the client needs on $architecture (once)" >&2
            rm -rf "$site.new"
            # shellcheck disable=SC2086
            "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
                --platform "manylinux2014_$architecture" --platform "manylinux_2_17_$architecture" --target "$site.new" $needs
            mv "$site.new" "$site"
        fi
    fi
    mkdir "$payload/site"
    cp -r "$site/grpc" "$site/google" "$site"/typing_extensions.py "$payload/site/"
    cp -r "$root/adapters/python/src/stepbox" "$payload/site/"
fi

"$here/run.sh" "$cache" "$payload"
