#!/usr/bin/env bash
# Boots the virtual machine, runs a directory's `main` in it as an ordinary user, prints what that printed and ends with
# its exit code; 125 when the machine never came that far, with its console's last lines.
#
# The processor is emulated (no KVM is asked for), so a boot takes about half a minute and nothing here is timed.
#
#   run.sh CACHE PAYLOAD      CACHE keeps the disk between runs; PAYLOAD holds `main` and all that it needs
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$1
payload=$2
limit=${STEPBOX_VM_TIMEOUT:-420}

for tool in mmdebstrap qemu-system-x86_64 mkfs.ext4; do
    command -v "$tool" > /dev/null || {
        echo "$tool is missing; as root: apt-get install -y --no-install-recommends mmdebstrap qemu-system-x86 seabios e2fsprogs" >&2
        exit 125
    }
done

mkdir -p "$cache"
# The name holds what the disk was built from, so that another recipe is another disk.
disk=$cache/bookworm-$(sha256sum "$here/image.sh" | cut -c1-12).img
if [ ! -s "$disk" ]; then
    echo "building the machine's disk (once)" >&2
    "$here/image.sh" "$disk"
fi

work=$(mktemp -d "$cache/run.XXXXXX")
machine=
finish() {
    if [ -n "$machine" ]; then
        kill "$machine" 2> /dev/null || true
        wait "$machine" 2> /dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT

tar --create --file "$work/payload.tar" --transform 's,^\./,payload/,' -C "$payload" .
# A drive's size is a whole number of sectors.
truncate -s %1M "$work/payload.tar"
: > "$work/console"

# `-snapshot`: what the guest writes is thrown away, and the disk serves again.
timeout "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 \
    -nodefaults -nographic -no-reboot -nic none -snapshot \
    -drive "file=$disk,format=raw,if=virtio" -drive "file=$work/payload.tar,format=raw,if=virtio,readonly=on" \
    -kernel "$disk.kernel" -initrd "$disk.initrd" \
    -append 'console=ttyS0 root=/dev/vda rw quiet loglevel=0 systemd.show_status=0' \
    -serial "file:$work/console" < /dev/null &
machine=$!

while kill -0 "$machine" 2> /dev/null && ! grep -aq '^@@end' "$work/console"; do
    sleep 1
done

tr -d '\r' < "$work/console" > "$work/text"
code=$(sed -n 's/^@@end \([0-9]*\).*/\1/p' "$work/text")
if [ -z "$code" ]; then
    echo "the machine did not get to the end within $limit s; its last lines:" >&2
    tail -n 40 "$work/text" >&2
    exit 125
fi
sed -n '/@@begin/,/^@@end/p' "$work/text" | sed '1d;$d'
exit "$code"
