#!/bin/bash
# debug-kernel.sh - build a kernel that looks at everything the module does: KASAN, lockdep, PROVE_RCU, DEBUG_VM,
# PAGE_TABLE_CHECK
#
#   kernel/debug-kernel.sh [SERIES]     SERIES is 6.12 (the default) or 6.1
#   kernel/test.sh debug                then runs the tests on it
#
# From Debian's linux-source package, with a small configuration of its own: what the tests need and nothing else. Takes
# some minutes of all processors and 3 GB in target/kernel. Needs, beside what test.sh needs:
#   apt-get install --no-install-recommends flex bison libelf-dev libssl-dev
# JOBS sets how many compilers run at once, NICE how politely (19).
set -euo pipefail
cd "$(dirname "$0")/.."
work=${CARGO_TARGET_DIR:-$PWD/target}/kernel
series=${1:-6.12}
dest=$work/debug
jobs=${JOBS:-$(nproc)}
polite="nice -n ${NICE:-19}"

for tool in flex bison gcc make bc; do
	command -v $tool > /dev/null || { echo "debug-kernel.sh: $tool is missing" >&2; exit 1; }
done

source=$dest/linux-source-$series
if [ ! -f "$source/Makefile" ]; then
	mkdir -p "$dest/debs"
	(
		cd "$dest/debs"
		ls "linux-source-${series}_"*.deb > /dev/null 2>&1 || apt-get download -q "linux-source-$series"
	)
	dpkg-deb --fsys-tarfile "$(ls "$dest/debs/linux-source-${series}_"*.deb | tail -1)" |
		tar -xO "./usr/src/linux-source-$series.tar.xz" | $polite tar -xJ -C "$dest"
fi

cd "$source"
cat > "$dest/fragment" <<'CONFIG'
# what a guest of run.sh needs
CONFIG_64BIT=y
CONFIG_SMP=y
CONFIG_NR_CPUS=8
CONFIG_PREEMPT=y
CONFIG_HIGH_RES_TIMERS=y
CONFIG_PRINTK=y
CONFIG_PRINTK_TIME=y
CONFIG_BUG=y
CONFIG_TTY=y
CONFIG_UNIX98_PTYS=n
CONFIG_SERIAL_8250=y
CONFIG_SERIAL_8250_CONSOLE=y
CONFIG_ACPI=y
CONFIG_PCI=y
CONFIG_HYPERVISOR_GUEST=y
CONFIG_PARAVIRT=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_RD_GZIP=y
CONFIG_BINFMT_ELF=y
CONFIG_BINFMT_SCRIPT=y
CONFIG_DEVTMPFS=y
CONFIG_PROC_FS=y
CONFIG_PROC_SYSCTL=y
CONFIG_PROC_PAGE_MONITOR=y
CONFIG_SYSFS=y
CONFIG_TMPFS=y
CONFIG_SHMEM=y
CONFIG_MODULES=y
CONFIG_MODULE_UNLOAD=y
CONFIG_MULTIUSER=y
CONFIG_FUTEX=y
CONFIG_EPOLL=y
CONFIG_EVENTFD=y
CONFIG_INOTIFY_USER=y
CONFIG_SIGNALFD=y
CONFIG_TIMERFD=y
CONFIG_POSIX_TIMERS=y
CONFIG_ADVISE_SYSCALLS=y
CONFIG_CROSS_MEMORY_ATTACH=y
CONFIG_MEMBARRIER=y
CONFIG_VM_EVENT_COUNTERS=y
CONFIG_BLOCK=y
CONFIG_BLK_DEV=y
CONFIG_FILE_LOCKING=y
CONFIG_VIRTIO_MENU=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_CONFIGFS_FS=y
CONFIG_BLK_DEV_NULL_BLK=m
# what the module needs, or the tests exercise
CONFIG_KPROBES=y
CONFIG_KALLSYMS=y
CONFIG_IO_URING=y
CONFIG_AIO=y
CONFIG_MEMCG=y
CONFIG_CGROUPS=y
CONFIG_TRANSPARENT_HUGEPAGE=y
CONFIG_TRANSPARENT_HUGEPAGE_ALWAYS=y
CONFIG_COMPACTION=y
CONFIG_MIGRATION=y
CONFIG_KSM=y
CONFIG_MEM_SOFT_DIRTY=y
CONFIG_USERFAULTFD=y
# KVM brings MMU_NOTIFIER
CONFIG_VIRTUALIZATION=y
CONFIG_KVM=y
CONFIG_CPU_SUP_AMD=y
CONFIG_KVM_AMD=y
# what looks on
CONFIG_DEBUG_KERNEL=y
CONFIG_DEBUG_INFO_NONE=y
CONFIG_FRAME_POINTER=y
CONFIG_UNWINDER_FRAME_POINTER=y
CONFIG_STACKTRACE=y
CONFIG_KASAN=y
CONFIG_KASAN_GENERIC=y
CONFIG_KASAN_OUTLINE=y
CONFIG_KASAN_VMALLOC=y
CONFIG_PROVE_LOCKING=y
CONFIG_PROVE_RCU=y
CONFIG_DEBUG_ATOMIC_SLEEP=y
CONFIG_DEBUG_VM=y
CONFIG_DEBUG_VM_RB=y
CONFIG_DEBUG_VM_PGFLAGS=y
CONFIG_DEBUG_VM_MAPLE_TREE=y
CONFIG_DEBUG_VM_PGTABLE=y
CONFIG_PAGE_TABLE_CHECK=y
CONFIG_PAGE_TABLE_CHECK_ENFORCED=y
CONFIG_DEBUG_LIST=y
CONFIG_BUG_ON_DATA_CORRUPTION=y
CONFIG_PAGE_POISONING=y
CONFIG_DEBUG_PAGE_REF=n
CONFIG_DEBUG_OBJECTS=y
CONFIG_DEBUG_OBJECTS_FREE=y
CONFIG_SLUB_DEBUG=y
CONFIG_SCHED_STACK_END_CHECK=y
CONFIG_DEBUG_PREEMPT=y
CONFIG_DETECT_HUNG_TASK=y
CONFIG_DEFAULT_HUNG_TASK_TIMEOUT=300
CONFIG_RCU_CPU_STALL_TIMEOUT=120
CONFIG_TLB_FLUSH_DEBUG=y
CONFIG_DEBUG_TLBFLUSH=y
CONFIG
make -s KCONFIG_ALLCONFIG="$dest/fragment" allnoconfig > /dev/null
./scripts/config --set-str LOCALVERSION -exmap-debug --disable LOCALVERSION_AUTO
make -s olddefconfig

# Options that did not take would make the run say nothing.
for option in KASAN PROVE_LOCKING PROVE_RCU DEBUG_VM PAGE_TABLE_CHECK DEBUG_ATOMIC_SLEEP DEBUG_LIST MMU_NOTIFIER KPROBES IO_URING MEMCG \
	VIRTIO_BLK SERIAL_8250_CONSOLE; do
	grep -q "^CONFIG_$option=y" .config || { echo "debug-kernel.sh: $option was not accepted" >&2; exit 1; }
done
[ -n "${CONFIG_ONLY:-}" ] && exit 0

$polite make -s -j"$jobs" bzImage modules
release=$(make -s kernelrelease)
rm -rf "$dest/root"
mkdir -p "$dest/root/boot" "$dest/root/usr/src"
cp arch/x86/boot/bzImage "$dest/root/boot/vmlinuz-$release"
make -s INSTALL_MOD_PATH="$dest/root" modules_install
rm -f "$dest/root/lib/modules/$release"/{build,source}
busybox depmod -b "$dest/root" "$release"
ln -s "$source" "$dest/root/usr/src/linux-headers-$release"
echo "$release" > "$dest/release"
echo "debug-kernel.sh: $release is in $dest"
