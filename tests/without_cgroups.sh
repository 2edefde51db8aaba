#!/usr/bin/env bash
# Runs a command where no cgroup can be had, in a mount namespace of its own: an engine that is started there keeps limits
# by what else there is.
#
#   without_cgroups.sh COMMAND [ARGUMENT...]
set -euo pipefail

if [ "$(id -u)" -eq 0 ]; then
    exec unshare --mount --propagation private bash -c 'umount --recursive --lazy /sys/fs/cgroup; exec "$@"' bash "$@"
fi
# Mounts of others cannot be taken away, only covered.
exec unshare --user --map-current-user --keep-caps --mount --propagation private bash -c '
    mount -t tmpfs -o ro,size=4k none /sys/fs/cgroup
    exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@"' bash "$@"
