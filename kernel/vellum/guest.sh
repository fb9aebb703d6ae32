# guest.sh - in the guest: load the module, make a file system, run Vellum's programs. /guest.conf has MODE, SLOW (arguments
# for test programs), SECONDS_PROGRAM (how long one may take) and SECONDS_STRESS; /programs lists the test programs, named PACKAGE-TEST.
. /guest.conf
failed=0
note() {
	echo "not ok - $1"
	failed=1
}
mkdir -p /lib /lib64 /etc
mv /*.so* /lib/
ln -sf /lib/ld-linux-x86-64.so.2 /lib64/
mv /mke2fs.conf /etc/
/mke2fs -q -t ext4 -b 4096 /dev/vda && mount -t ext4 /dev/vda /mnt || exit 1
insmod /exmap.ko || exit 1
# Tests that count what happens in a given time get more of it.
export TMPDIR=/mnt EXMAP_EXPECTED=1 TEST_PATIENCE=5
cd /mnt || exit 1

# run PROGRAM - says how it went; by now the module's device is what Vellum finds by itself
run() {
	begin=$(cut -d. -f1 /proc/uptime)
	# shellcheck disable=SC2086 # arguments
	if timeout -s ABRT "$SECONDS_PROGRAM" /"$1" --test-threads=2 $SLOW > /tmp/log 2>&1; then
		echo "ok - $1: $(sed -n 's/^test result: ok. //p' /tmp/log | cut -d';' -f1,3), $(($(cut -d. -f1 /proc/uptime) - begin)) s"
		grep '^SKIPPED' /tmp/log
		return 0
	fi
	note "$1"
	tail -60 /tmp/log
	return 1
}

rounds=0
while :; do
	while read -r program; do
		run "$program"
	done < /programs
	rounds=$((rounds + 1))
	[ "$MODE" = stress ] && [ "$failed" = 0 ] && [ "$(cut -d. -f1 /proc/uptime)" -lt "$SECONDS_STRESS" ] || break
done
[ "$MODE" = stress ] && [ "$failed" = 0 ] && echo "ok - stress: $rounds rounds in $(cut -d. -f1 /proc/uptime) s"

shootdowns() {
	awk '/^ *TLB:/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) n += $i } END { print n + 0 }' /proc/interrupts
}
if [ "$MODE" = counts ]; then
	for method in exmap madvise; do
		before=$(shootdowns)
		/lab evict --methods $method --pool 64MiB --threads 2 --seconds 5 --rounds 1 --json > /tmp/log 2>&1 || note "lab evict with $method"
		after=$(shootdowns)
		pages=$(grep -o '"operations":[0-9]*' /tmp/log | head -1 | cut -d: -f2)
		echo "# lab evict, $method, 2 threads, batches of 512: $pages pages, $((after - before)) shootdowns"
		[ -n "$pages" ] || tail -5 /tmp/log
	done
	before=$(shootdowns)
	/lab lookup --engines vellum --tuples 200k --pool 8MiB --threads 2 --seconds 20 --rounds 1 > /tmp/log 2>&1 || note "lab lookup"
	echo "# lab lookup, 2 threads, beyond memory: $(($(shootdowns) - before)) shootdowns"
	cat /tmp/log
fi
cd /
umount /mnt
rmmod exmap || note "the module is still in use"
dmesg > /tmp/dmesg
if grep -E 'BUG|WARNING|Bad page|bad pte|Bad rss|KASAN|possible circular|possible recursive|suspicious RCU|Call Trace|general protection|RCU stall|hung task' /tmp/dmesg; then
	tail -60 /tmp/dmesg
	note "the kernel complained"
else
	echo "ok - the kernel did not complain"
fi
exit $failed
