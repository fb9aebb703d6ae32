# guest.sh - in the guest: load the module, run the tests, look at what the kernel has to say. Sourced words come from
# /guest.conf: TESTS (groups of exmap-test, empty for all), SECONDS_STRESS, RELOADS,
# COST (1 to count instructions), SLACK_KIB (memory that may seem lost for a while).
. /guest.conf
. /dmesg.sh
failed=0
note() {
	echo "not ok - $1"
	failed=1
}

# disk NAME [ATTRIBUTE=VALUE...] - a disk in memory, of 16 MiB, with two pages that cannot be read
disk() {
	path=/sys/kernel/config/nullb/$1
	mkdir "$path" || return 1
	shift
	for pair in memory_backed=1 size=16 blocksize=4096 badblocks=+64-79 "$@" power=1; do
		echo "${pair#*=}" > "$path/${pair%%=*}" || return 1
	done
}
if [ -e /sys/module/null_blk ]; then
	mount -t configfs none /sys/kernel/config
	# The second takes half a second for each request.
	disk nullb0 && disk nullb1 irqmode=2 completion_nsec=500000000 || echo "# no disks with bad blocks"
	if ! [ -e /dev/vda ]; then
		disk nullb2 size=64 badblocks=-64-79 && ln -s nullb2 /dev/vda
	fi
fi
mount -t cgroup2 none /sys/fs/cgroup && echo +memory > /sys/fs/cgroup/cgroup.subtree_control || echo "# no memory groups"

insmod /exmap.ko || exit 1
insmod /peek.ko || echo "# nothing to look at page-table entries with"
# shellcheck disable=SC2086 # several words
EXMAP_SLACK_KIB=$SLACK_KIB EXMAP_SECONDS=$SECONDS_STRESS /exmap-test $TESTS || failed=1
if [ "$COST" = 1 ]; then
	/exmap-cost || failed=1
	/exmap-cost-read /dev/nullb0 || failed=1
fi
rmmod exmap || note "the module is still in use"

if [ "$RELOADS" -gt 0 ]; then
	# Free pages, with those that each processor keeps in its own lists, in KiB.
	free() {
		echo 3 > /proc/sys/vm/drop_caches
		sleep 1
		awk '/pages free/ { n += $3 } /count:/ { n += $2 } END { print n * 4 }' /proc/zoneinfo
	}
	reload() {
		n=$1
		while [ "$n" -gt 0 ]; do
			insmod /exmap.ko && /exmap-test basic > /tmp/load && rmmod exmap || return 1
			n=$((n - 1))
		done
	}
	reload 10 || note "the module does not load again"
	before=$(free)
	reload "$RELOADS" || note "the module does not load again"
	after=$(free)
	echo "# free memory before and after $RELOADS loads: $before and $after KiB"
	# A page lost by each load would be 400 KiB of a hundred; the kernel's own slabs move by less.
	[ "$((before - after))" -lt "$((RELOADS * 4))" ] && echo "ok - loaded $RELOADS times, no memory lost" ||
		note "memory was lost by loading"
fi

kernel_did_not_complain
exit $failed
