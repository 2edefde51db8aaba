#!/usr/bin/env bash
# Runs a command as an unprivileged user who owns a child of each cgroup v1 controller, as a careful administrator would
# set one up, and fails when the command or what it started left anything.
#
#   as_user.sh COMMAND [ARGUMENT...]     called by root: as uid 61321; called by anybody else: as the caller
#
# With STEPBOX_TEST_CGROUPS=none the user gets no cgroup.
#
# The user has a home and a temporary directory of its own, and no groups. Where a directory above the checkout or the
# interpreter is closed to others (`/root` is), the command sees it in a mount namespace of its own with nothing in it but
# these.
#
# Where newuidmap and newgidmap are, the user has a range of ids too, and the name that those programs ask for: in
# copies of /etc/passwd, /etc/subuid and /etc/subgid that this mount namespace alone has. STEPBOX_TEST_IDS=none: no range,
# and no name.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd -P)
uid=${STEPBOX_TEST_UID:-61321}

if [ "$(id -u)" -ne 0 ]; then
    exec "$@"
fi

place=$(mktemp -d /tmp/stepbox-user.XXXXXX)
groups=()

# The own cgroup of a v1 controller, or nothing where it is not a v1 one or cannot be seen.
own_cgroup() {
    local controller=$1 path point
    path=$(awk -F: -v name="$controller" '{ n = split($2, names, ","); for (i = 1; i <= n; i++) if (names[i] == name) print $3 }' /proc/self/cgroup)
    point=$(awk -v name="$controller" '{ n = split($NF, options, ","); for (i = 1; i <= n; i++) if (options[i] == name && / - cgroup /) print $5 }' /proc/self/mountinfo | head -n 1)
    if [ -n "$path" ] && [ -n "$point" ] && [ -d "$point$path" ]; then
        echo "$point${path%/}"
    fi
}

remove_groups() {
    local group left=0
    for group in "${groups[@]}"; do
        # A process that has just ended may still be counted.
        for _ in $(seq 50); do
            rmdir "$group" 2> /dev/null && continue 2
            sleep 0.1
        done
        echo "left in $group: $(find "$group" -mindepth 1 -type d | head -n 5 | tr '\n' ' ') processes $(tr '\n' ' ' < "$group/cgroup.procs")" >&2
        left=1
    done
    return $left
}

trap 'remove_groups || true; rm -rf "$place"' EXIT

controllers=(memory pids cpu cpuacct cpuset)
[ "${STEPBOX_TEST_CGROUPS:-}" != none ] || controllers=()
for controller in "${controllers[@]}"; do
    own=$(own_cgroup "$controller")
    if [ -z "$own" ]; then
        # Of these two no limit depends on.
        if [ "$controller" != cpuacct ] && [ "$controller" != cpuset ]; then
            echo "SKIPPED: no cgroup v1 of $controller to give to a user here" >&2
            [ "${STEPBOX_TEST_REQUIRE:-}" != all ] || exit 1
        fi
        continue
    fi
    # Not by the name of an engine: one that is swept for.
    group=$own/tests-of-stepbox-$$
    # Controllers that are mounted together have one directory.
    if [ ! -d "$group" ]; then
        mkdir "$group"
        groups+=("$group")
        if [ "$controller" = cpuset ]; then
            # Without any no process can be in it.
            cat "$own/cpuset.cpus" > "$group/cpuset.cpus"
            cat "$own/cpuset.mems" > "$group/cpuset.mems"
        fi
        chown "$uid:$uid" "$group" "$group/cgroup.procs" "$group/tasks"
    fi
done

mkdir "$place/home" "$place/tmp"
chmod 0755 "$place"
chown "$uid:$uid" "$place/home" "$place/tmp"

# In a mount namespace of its own: makes what the command needs reachable, then drops to the user.
cat > "$place/enter" <<'ENTER'
set -euo pipefail
place=$1 uid=$2
shift 2
needed=()
while [ "$1" != -- ]; do
    needed+=("$1")
    shift
done
shift

# The outermost directory on the way to $1 that others may not pass.
closed() {
    local path=$1 found=
    while [ "$path" != / ]; do
        path=$(dirname "$path")
        [ $((0$(stat -c %a "$path") & 1)) -eq 1 ] || found=$path
    done
    echo "$found"
}

ids=none bounding=-all
if [ "${STEPBOX_TEST_IDS:-}" != none ] && command -v newuidmap newgidmap > /dev/null && [ -e /etc/subuid ] && [ -e /etc/subgid ]; then
    # As `usermod --add-subuids` would write it.
    for file in passwd subuid subgid; do
        cp --preserve=mode "/etc/$file" "$place/$file"
    done
    echo "stepbox-tests:x:$uid:$uid::$place/home:/bin/sh" >> "$place/passwd"
    echo "stepbox-tests:$STEPBOX_TEST_RANGE" | tee -a "$place/subuid" >> "$place/subgid"
    for file in passwd subuid subgid; do
        mount --bind "$place/$file" "/etc/$file"
    done
    # All that these programs, which are root's, have to have.
    ids=range bounding=-all,+setuid,+setgid,+dac_override,+sys_admin
fi

mkdir "$place/stage"
declare -A doors=()
for index in "${!needed[@]}"; do
    door=$(closed "${needed[$index]}")
    [ -n "$door" ] || continue
    doors[$door]+=" $index"
    mkdir "$place/stage/$index"
    mount --rbind "${needed[$index]}" "$place/stage/$index"
done
for door in "${!doors[@]}"; do
    mount -t tmpfs -o mode=0755,size=1m none "$door"
    for index in ${doors[$door]}; do
        mkdir -p "${needed[$index]}"
        mount --move "$place/stage/$index" "${needed[$index]}"
    done
done
cd "$PWD"
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all --bounding-set="$bounding" \
    env -i HOME="$place/home" TMPDIR="$place/tmp" PATH="$PATH" LANG=C.UTF-8 \
    STEPBOX_TEST_REQUIRE="${STEPBOX_TEST_REQUIRE:-}" STEPBOX_TEST_IDS="$ids" PYTHONDONTWRITEBYTECODE=1 "$@"
ENTER

prefix=$("$root/.venv/bin/python" -c 'import os, sys; print(os.path.realpath(sys.base_prefix))')
# No account's: below what a root engine takes, and far above what is given out.
range_first=1700000000 range_count=65536
export STEPBOX_TEST_RANGE=$range_first:$range_count
code=0
(
    for group in "${groups[@]}"; do
        echo "$BASHPID" > "$group/cgroup.procs"
    done
    cd "$root"
    exec unshare --mount --propagation private bash "$place/enter" "$place" "$uid" "$root" "$prefix" -- "$@"
) || code=$?

# Whoever is killed is gone a moment later.
for _ in $(seq 50); do
    left=$(ps -e -o uid=,pid=,args= | awk -v uid="$uid" -v first="$range_first" -v count="$range_count" \
        '$1 == uid || ($1 >= first && $1 < first + count) { $1 = ""; print }')
    [ -n "$left" ] || break
    sleep 0.1
done
if [ -n "$left" ]; then
    printf 'processes that are left:\n%s\n' "$left" >&2
    awk '{ print $1 }' <<< "$left" | xargs -r kill -KILL || true
    code=1
fi
found=$(find "$place/tmp" -mindepth 2 -path "$place/tmp/stepbox-$uid/*")
if [ -n "$found" ]; then
    printf 'files that are left:\n%s\n' "$found" >&2
    code=1
fi
remove_groups || code=1
groups=()
exit "$code"
