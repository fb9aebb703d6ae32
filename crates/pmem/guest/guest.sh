# guest.sh - runs in the emulated machine: makes the NVDIMM usable and writes to a store on it, or checks it
mkdir -p /lib64 /lib/x86_64-linux-gnu /etc
cp /ld-linux-x86-64.so.2 /lib64/
cp /*.so.* /lib/x86_64-linux-gnu/
cp /mke2fs.conf /etc/

# device - makes /dev/dax0.0 of the NVDIMM, once; after a reboot the kernel finds it as it was
device() {
	[ -e /dev/dax0.0 ] && return
	cd /sys/bus/nd/devices || exit 1
	echo namespace0.0 > /sys/bus/nd/drivers/nd_pmem/unbind
	cat /proc/sys/kernel/random/uuid > dax0.0/uuid
	echo 2097152 > dax0.0/align
	echo ram > dax0.0/mode
	echo namespace0.0 > dax0.0/namespace
	echo dax0.0 > /sys/bus/nd/drivers/dax_pmem/bind
	cd /
	ls -l /dev/dax0.0 || exit 1
}

# file - mounts the NVDIMM with DAX
file() {
	. /nvdimm.sh
	if [ "$nvdimm_fresh" = yes ]; then
		/mke2fs -q -t ext4 -b 4096 /dev/pmem0 || exit 1
	fi
	mount -t ext4 -o dax /dev/pmem0 /mnt || { dmesg | tail; exit 1; }
	mount | grep pmem0
}

case $(cat /proc/cmdline) in
*mode=devdax*)
	device
	store=/dev/dax0.0
	;;
*)
	file
	store=/mnt/store
	;;
esac
acknowledged=$(sed -n 's/.*acknowledged=\([0-9]*\).*/\1/p' /proc/cmdline)
if [ -n "$acknowledged" ]; then
	/writer check "$store" "$acknowledged" || exit 1
	umount /mnt 2> /dev/null
	exit 0
fi
/writer write "$store"
