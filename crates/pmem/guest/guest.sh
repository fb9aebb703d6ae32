# guest.sh - runs in the emulated machine: mounts the NVDIMM with DAX and writes to a store on it, or checks it
mkdir -p /lib64 /lib/x86_64-linux-gnu /etc
cp /ld-linux-x86-64.so.2 /lib64/
cp /*.so.* /lib/x86_64-linux-gnu/
cp /mke2fs.conf /etc/
. /nvdimm.sh
if [ "$nvdimm_fresh" = yes ]; then
	/mke2fs -q -t ext4 -b 4096 /dev/pmem0 || exit 1
fi
mount -t ext4 -o dax /dev/pmem0 /mnt || { dmesg | tail; exit 1; }
mount | grep pmem0
acknowledged=$(sed -n 's/.*acknowledged=\([0-9]*\).*/\1/p' /proc/cmdline)
if [ -n "$acknowledged" ]; then
	/writer check /mnt/store "$acknowledged" || exit 1
	umount /mnt
	exit 0
fi
/writer write /mnt/store
