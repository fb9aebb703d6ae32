# guest.sh - in the guest: load the module, make a file system, run Vellum's programs. /guest.conf has MODE, SLOW (arguments
# for test programs), SECONDS_PROGRAM (how long one may take) and SECONDS_STRESS; each line of
# /programs is a test program, named PACKAGE-TEST, and which of its tests to run, or none for all.
. /guest.conf
. /dmesg.sh
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
# Tests with generated inputs look for inputs kept beside their sources, and fail if they do not find the sources.
while read -r source; do
	mkdir -p "${source%/*}"
	: > "$source"
done < /sources

# run PROGRAM [TEST...] - says how it went; by now the module's device is what Vellum finds by itself
run() {
	program=$1
	shift
	begin=$(cut -d. -f1 /proc/uptime)
	# shellcheck disable=SC2086 # arguments
	if timeout -s ABRT "$SECONDS_PROGRAM" /"$program" "$@" --show-output --test-threads=2 $SLOW > /tmp/log 2>&1; then
		grep '^counted:' /tmp/log >> /tmp/counted
		echo "ok - $program: $(sed -n 's/^test result: ok. //p' /tmp/log | cut -d';' -f1,3), $(($(cut -d. -f1 /proc/uptime) - begin)) s"
		grep '^SKIPPED' /tmp/log
		return 0
	fi
	note "$program"
	tail -60 /tmp/log
	return 1
}

# counted - what the programs say they did so far, added up for each way in which memory was given back
counted() {
	# counted: N operations, N pages read, N pages evicted, N pages written, memory by METHOD
	awk '{ operations[$15] += $2; read[$15] += $4; evicted[$15] += $7; written[$15] += $10 }
	END {
		for (method in operations)
			printf "# memory by %s: %d operations, %d pages read and verified, %d evicted, %d written\n",
				method, operations[method], read[method], evicted[method], written[method]
	}' /tmp/counted
}

rounds=0
while :; do
	# In each round other random numbers.
	export TEST_SEED=$rounds
	while read -r program tests; do
		# shellcheck disable=SC2086 # several names
		run "$program" $tests
	done < /programs
	rounds=$((rounds + 1))
	[ "$MODE" = stress ] && echo "# $rounds rounds in $(cut -d. -f1 /proc/uptime) s" && counted
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
# What watches over a program's time is in that folder, and looks only every second whether it is still wanted.
sleep 2
umount /mnt || note "the file system is still in use"
rmmod exmap || note "the module is still in use"
kernel_did_not_complain
exit $failed
