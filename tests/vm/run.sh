#!/usr/bin/env bash
# Boots the virtual machine, runs a directory's `main` in it, prints what that printed and ends with its exit code; 125
# when the machine never came that far, with its console's last lines.
#
# The processor is emulated (no KVM is asked for), so a boot takes half a minute to two, and nothing here is timed.
#
#   run.sh CACHE PAYLOAD      CACHE keeps the disk between runs; PAYLOAD holds `main` and all that it needs
#
# STEPBOX_VM_ARCH: x86_64, or aarch64. STEPBOX_VM_USER: dev, an ordinary user, or root. STEPBOX_VM_KERNEL: stable, or
# backports (x86_64 alone has it).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$1
payload=$2
architecture=${STEPBOX_VM_ARCH:-x86_64}
user=${STEPBOX_VM_USER:-dev}
kernel=${STEPBOX_VM_KERNEL:-stable}

tools=(mmdebstrap mkfs.ext4 "qemu-system-$architecture")
packages=(mmdebstrap e2fsprogs)
case $architecture in
    x86_64)
        # Without the pair-wise exchange, which the emulator gets wrong often enough for a newer kernel to panic at its start.
        machine_options=(-cpu max,cx16=off -smp 2)
        console=ttyS0 limit=420
        packages+=(qemu-system-x86 seabios)
        ;;
    aarch64)
        # Signed pointers are reckoned by a slow algorithm, unless another is asked for.
        machine_options=(-machine virt -cpu max,pauth-impdef=on -smp 2)
        console=ttyAMA0 limit=900
        packages+=(qemu-system-arm qemu-user-static)
        [ "$(uname -m)" = aarch64 ] || tools+=(qemu-aarch64-static)
        ;;
    *)
        echo "no machine of $architecture" >&2
        exit 125
        ;;
esac
limit=${STEPBOX_VM_TIMEOUT:-$limit}

for tool in "${tools[@]}"; do
    command -v "$tool" > /dev/null || {
        echo "$tool is missing; as root: apt-get install -y --no-install-recommends ${packages[*]}" >&2
        exit 125
    }
done

mkdir -p "$cache"
# The name holds what the disk was built from, so that another recipe is another disk.
disk=$cache/bookworm-$architecture-$(sha256sum "$here/image.sh" | cut -c1-12).img
if [ ! -s "$disk" ]; then
    echo "building the machine's disk (once)" >&2
    "$here/image.sh" "$architecture" "$disk"
fi
case $kernel in
    stable) boot=$disk ;;
    *) boot=$disk.$kernel ;;
esac

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

# `-snapshot`: what the guest writes is thrown away, and the disk serves again. The two drives bear their names on every
# machine by the order of their addresses.
timeout "$limit" "qemu-system-$architecture" "${machine_options[@]}" -accel tcg,thread=multi -m 1024 \
    -nodefaults -nographic -no-reboot -nic none -snapshot \
    -drive "file=$disk,format=raw,if=none,id=root" -device virtio-blk-pci,drive=root,addr=4 \
    -drive "file=$work/payload.tar,format=raw,if=none,id=payload,readonly=on" -device virtio-blk-pci,drive=payload,addr=5 \
    -kernel "$boot.kernel" -initrd "$boot.initrd" \
    -append "console=$console root=/dev/vda rw quiet loglevel=0 systemd.show_status=0 stepbox.user=$user" \
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
