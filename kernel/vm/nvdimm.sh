# nvdimm.sh - for guest scripts to source: makes /dev/pmem0 of a QEMU NVDIMM ready for DAX
#
# A fresh NVDIMM is a raw device, on which file systems refuse DAX. This gives it the table of pages that DAX needs, in
# ordinary memory, once; after a reboot with the same file behind it the kernel finds the device as it was, contents
# and all. nvdimm_fresh says which it is: yes or no.
if ls -d /sys/bus/nd/drivers/nd_pmem/pfn* > /dev/null 2>&1; then
	nvdimm_fresh=no
else
	nvdimm_fresh=yes
	(
		cd /sys/bus/nd/devices || exit 1
		echo namespace0.0 > /sys/bus/nd/drivers/nd_pmem/unbind
		cat /proc/sys/kernel/random/uuid > pfn0.0/uuid
		echo ram > pfn0.0/mode
		echo namespace0.0 > pfn0.0/namespace
		echo pfn0.0 > /sys/bus/nd/drivers/nd_pmem/bind
	)
fi
