# dmesg.sh - for scripts in the guest: whether the kernel has complained. To be sourced; expects note, which counts a failure.

# kernel_did_not_complain - looks through all that the kernel has said since it was booted; one result
kernel_did_not_complain() {
	dmesg > /tmp/dmesg
	if grep -E 'BUG|WARNING|Bad page|bad pte|Bad rss|KASAN|possible circular|possible recursive|suspicious RCU|Call Trace|general protection|RCU stall|hung task' /tmp/dmesg; then
		tail -60 /tmp/dmesg
		note "the kernel complained"
	else
		echo "ok - the kernel did not complain"
	fi
}
