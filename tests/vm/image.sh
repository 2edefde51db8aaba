#!/usr/bin/env bash
# Builds the disk of the virtual machine: Debian bookworm with systemd, an ordinary user `dev` and root, one of whom is
# logged in on the serial console, and a unit that lays out the second disk's archive in the former's home.
#
#   image.sh ARCHITECTURE DISK     writes DISK, and DISK.kernel and DISK.initrd beside it; for x86_64 DISK.backports.kernel and
#                                  DISK.backports.initrd too, a kernel that has what bookworm's lacks
set -euo pipefail

architecture=$1
disk=$2
packages=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,login,passwd,util-linux,kmod
packages+=,initramfs-tools,bash,procps,python3,uidmap
case $architecture in
    x86_64)
        debian=amd64 console=ttyS0
        packages+=,linux-image-cloud-amd64,podman,crun,apparmor
        ;;
    aarch64)
        debian=arm64 console=ttyAMA0
        packages+=,linux-image-cloud-arm64
        ;;
    *)
        echo "no machine of $architecture" >&2
        exit 2
        ;;
esac

# Programs of another architecture run in an emulator that the kernel finds in a table. A user namespace has a table of
# its own (Linux 6.7), so this host's stays as it is; the ids are root's own.
registered=/proc/sys/fs/binfmt_misc/qemu-$architecture
if [ "$architecture" != "$(uname -m)" ] && [ ! -e "$registered" ]; then
    if [ -n "${STEPBOX_VM_TABLE:-}" ]; then
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        # What the header of a program of that architecture looks like; F: the emulator is opened now, and so found in any root.
        mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
        magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
        printf '%s' ":qemu-$architecture:M::$magic:$mask:$(command -v "qemu-$architecture-static"):F" > /proc/sys/fs/binfmt_misc/register
    else
        export STEPBOX_VM_TABLE=own
        coproc INSIDE { exec unshare --user --mount bash -c 'echo ready; read -r; exec "$@" > /dev/null' - "$0" "$@"; }
        read -r _ <&"${INSIDE[0]}"
        echo 0 0 4294967295 > "/proc/$INSIDE_PID/gid_map"
        echo 0 0 4294967295 > "/proc/$INSIDE_PID/uid_map"
        inside=$INSIDE_PID
        echo >&"${INSIDE[1]}"
        wait "$inside"
        exit
    fi
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/stepbox-vm.XXXXXX")
# Stopped half-way, the bootstrap may have file systems of the host mounted in there: those are not to be walked into.
trap 'rm -rf --one-file-system "$work"' EXIT

# The second kernel, from the archive that the first one came from. By the guest's own apt: the host's would install here.
cat > "$work/newer" <<'HOOK'
set -eu
sed 's/ bookworm / bookworm-backports /; t; d' "$1/etc/apt/sources.list" > "$1/etc/apt/sources.list.d/backports.list"
chroot "$1" apt-get update -qq
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get install -qq -y --no-install-recommends \
    --target-release bookworm-backports linux-image-cloud-amd64 > /dev/null
HOOK
hooks=()
[ "$architecture" != x86_64 ] || hooks+=(--customize-hook="sh '$work/newer' \"\$1\"")
if [ -n "${STEPBOX_VM_TABLE:-}" ]; then
    # A user namespace may mount none of these anew.
    hooks+=(--skip=chroot/mount/proc,chroot/mount/sys)
    hooks+=(--extract-hook='for at in proc sys; do mount --rbind "/$at" "$1/$at"; done')
    hooks+=(--customize-hook='for at in proc sys; do umount --lazy "$1/$at"; done')
fi

mmdebstrap --quiet --mode=root --skip=check/qemu --variant=minbase --architectures="$debian" --include="$packages" "${hooks[@]}" bookworm "$work/root"
root=$work/root

chroot "$root" useradd --create-home --shell /bin/bash dev
echo stepbox-vm > "$root/etc/hostname"
echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"

mkdir -p "$root/etc/systemd/system/serial-getty@$console.service.d" "$root/etc/systemd/system/multi-user.target.wants"
# Who logs in is a word of the kernel's command line.
cat > "$root/etc/systemd/system/serial-getty@$console.service.d/login.conf" <<'UNIT'
[Unit]
After=payload.service systemd-user-sessions.service

[Service]
ExecStart=
ExecStart=-/bin/sh -c 'user=$(sed "s/.*stepbox.user=//; s/ .*//" /proc/cmdline); exec /sbin/agetty --autologin "$user" --keep-baud 115200 %I vt220'
Restart=no
UNIT
# A raw archive is the disk: nothing has to be mounted, and the guest's files are the user's from the start.
cat > "$root/etc/systemd/system/payload.service" <<'UNIT'
[Unit]
Before=serial-getty@ttyS0.service serial-getty@ttyAMA0.service
Requires=dev-vdb.device
After=dev-vdb.device

[Service]
Type=oneshot
User=dev
SupplementaryGroups=disk
ExecStart=/bin/tar --extract --file=/dev/vdb --directory=/home/dev --no-same-owner
RemainAfterExit=yes

[Install]
WantedBy=multi-user.target
UNIT
ln -s ../payload.service "$root/etc/systemd/system/multi-user.target.wants/payload.service"
# What only slows a boot without a network or a disk to care for.
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service podman.service \
    podman.socket podman-restart.service podman-auto-update.service podman-auto-update.timer; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
cat > "$root/home/dev/.bash_profile" <<'PROFILE'
stty -echo columns 200
echo "@@begin"
bash /home/dev/payload/main
echo "@@end $?"
PROFILE
cp "$root/home/dev/.bash_profile" "$root/root/.bash_profile"
chroot "$root" chown dev:dev /home/dev/.bash_profile

# The newest name is the backport's.
mapfile -t kernels < <(cd "$root/boot" && printf '%s\n' vmlinuz-* | sort -V)
for index in "${!kernels[@]}"; do
    name=$disk
    [ "$index" -eq 0 ] || name=$disk.backports
    cp "$root/boot/${kernels[$index]}" "$name.kernel"
    cp "$root/boot/initrd.img-${kernels[$index]#vmlinuz-}" "$name.initrd"
done
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
truncate -s 2G "$disk.new"
mkfs.ext4 -q -F -E lazy_itable_init=1 -d "$root" "$disk.new"
mv "$disk.new" "$disk"
