#!/usr/bin/env bash
# Builds the disk of the virtual machine: Debian bookworm with systemd, an ordinary user `dev` who is logged in on the
# serial console, and a unit that lays out the second disk's archive in that user's home.
#
#   image.sh DISK     writes DISK, and DISK.kernel and DISK.initrd beside it
set -euo pipefail

disk=$1
packages=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,login,passwd,util-linux,kmod
packages+=,linux-image-cloud-amd64,initramfs-tools,bash,procps,python3

work=$(mktemp -d "${TMPDIR:-/tmp}/stepbox-vm.XXXXXX")
# Stopped half-way, the bootstrap may have file systems of the host mounted in there: those are not to be walked into.
trap 'rm -rf --one-file-system "$work"' EXIT

mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$work/root"
root=$work/root

chroot "$root" useradd --create-home --shell /bin/bash dev
echo stepbox-vm > "$root/etc/hostname"
echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"

mkdir -p "$root/etc/systemd/system/serial-getty@ttyS0.service.d" "$root/etc/systemd/system/multi-user.target.wants"
cat > "$root/etc/systemd/system/serial-getty@ttyS0.service.d/login.conf" <<'UNIT'
[Unit]
After=payload.service systemd-user-sessions.service

[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin dev --keep-baud 115200 %I vt220
Restart=no
UNIT
# A raw archive is the disk: nothing has to be mounted, and the guest's files are the user's from the start.
cat > "$root/etc/systemd/system/payload.service" <<'UNIT'
[Unit]
Before=serial-getty@ttyS0.service
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
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
cat > "$root/home/dev/.bash_profile" <<'PROFILE'
stty -echo columns 200
echo "@@begin"
bash ~/payload/main
echo "@@end $?"
PROFILE
chroot "$root" chown dev:dev /home/dev/.bash_profile

cp "$root"/boot/vmlinuz-* "$disk.kernel"
cp "$root"/boot/initrd.img-* "$disk.initrd"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
truncate -s 2G "$disk.new"
mkfs.ext4 -q -F -E lazy_itable_init=1 -d "$root" "$disk.new"
mv "$disk.new" "$disk"
