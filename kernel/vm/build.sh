#!/bin/bash
# build.sh SERIES-VARIANT DEST - build a kernel for guests from its source, as setup.sh does when it is asked for such a series
#
#   SERIES-debug   KASAN, lockdep, PROVE_RCU, DEBUG_VM, PAGE_TABLE_CHECK: looks at everything the module does
#   SERIES-plain   what Debian's kernels have that changes what the module meets, and nothing that looks on
#
# SERIES is 6.1 or 6.12, from Debian's linux-source package; or another of which trixie-backports keeps a source, such as
# 6.18, which has neither image nor headers there: that is upstream's, without Debian's patches. The configuration has what
# the tests need and little else. Takes some ten minutes of a processor and 3 GB. DEST is filled as by setup.sh; the source
# and what is fetched lie beside it. Needs, beside what test.sh needs:
#   apt-get install --no-install-recommends flex bison libelf-dev libssl-dev
# JOBS sets how many compilers run at once, NICE how politely (19). Does nothing if DEST is complete.
set -euo pipefail
series=${1%-*}
variant=${1##*-}
dest=$(realpath -m "$2")
[ -s "$dest/release" ] && exit 0
fetched=$(dirname "$dest")/sources
source=$(dirname "$dest")/linux-source-$series
polite="nice -n ${NICE:-19}"
. "$(dirname "$0")/suite.sh"

case $variant in
debug | plain) ;;
*) echo "build.sh: no variant $variant is known" >&2; exit 2 ;;
esac
for tool in flex bison gcc make bc; do
	command -v $tool > /dev/null || { echo "build.sh: $tool is missing" >&2; exit 1; }
done

# unpack - makes $source of an archive, whole or not at all
unpack() {
	rm -rf "$source.new"
	mkdir "$source.new"
	$polite tar -xJ -C "$source.new" --strip-components=1
	mv "$source.new" "$source"
}

mkdir -p "$fetched" "$dest"
if [ ! -d "$source" ]; then
	cd "$fetched"
	case $series in
	6.1 | 6.12)
		apt-get download -q "linux-source-$series"
		dpkg-deb --fsys-tarfile "$(ls "linux-source-${series}_"*.deb | tail -1)" |
			tar -xO "./usr/src/linux-source-$series.tar.xz" | unpack
		;;
	*)
		apt_of trixie-backports "$fetched/apt" deb-src
		version=$(apt-cache showsrc --only-source linux | sed -n "s/^Version: \($series\..*\)/\1/p" | sort -V | tail -1)
		[ -n "$version" ] || { echo "build.sh: trixie-backports has no source of $series" >&2; exit 1; }
		apt-get source -q --download-only --tar-only "linux=$version"
		unpack < "linux_${version%-*}.orig.tar.xz"
		;;
	esac
fi

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
# what Debian's kernels have that changes what the module meets
CONFIG_NUMA=y
CONFIG_NUMA_BALANCING=y
CONFIG_NUMA_BALANCING_DEFAULT_ENABLED=y
CONFIG_LRU_GEN=y
CONFIG_LRU_GEN_ENABLED=y
CONFIG_SECRETMEM=y
CONFIG_PTE_MARKER_UFFD_WP=y
CONFIG_PT_RECLAIM=y
CONFIG_MEMORY_FAILURE=y
CONFIG_FANOTIFY=y
CONFIG_SECURITY=y
CONFIG_SECCOMP=y
CONFIG_RANDOMIZE_BASE=y
CONFIG_INIT_ON_ALLOC_DEFAULT_ON=y
CONFIG_HARDENED_USERCOPY=y
CONFIG_DEBUG_KERNEL=y
CONFIG_DEBUG_INFO_NONE=y
CONFIG
if [ "$variant" = plain ]; then
	cat >> "$dest/fragment" <<'CONFIG'
CONFIG_CPU_MITIGATIONS=y
CONFIG_SPECULATION_MITIGATIONS=y
CONFIG_MITIGATION_PAGE_TABLE_ISOLATION=y
CONFIG_MITIGATION_RETPOLINE=y
CONFIG_MITIGATION_RETHUNK=y
CONFIG_X86_KERNEL_IBT=y
CONFIG_PREEMPT_DYNAMIC=y
CONFIG
else
	cat >> "$dest/fragment" <<'CONFIG'
# what looks on
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
fi
build=$dest/objects
kbuild() {
	make -s -C "$source" O="$build" "$@"
}
mkdir -p "$build"
kbuild KCONFIG_ALLCONFIG="$dest/fragment" allnoconfig > /dev/null
"$source/scripts/config" --file "$build/.config" --set-str LOCALVERSION "-exmap-$variant" --disable LOCALVERSION_AUTO
kbuild olddefconfig

# Options that did not take would make the run say nothing.
wanted="MMU_NOTIFIER KPROBES IO_URING MEMCG USERFAULTFD TRANSPARENT_HUGEPAGE NUMA_BALANCING VIRTIO_BLK SERIAL_8250_CONSOLE"
[ "$variant" = plain ] || wanted="$wanted KASAN PROVE_LOCKING PROVE_RCU DEBUG_VM PAGE_TABLE_CHECK DEBUG_ATOMIC_SLEEP DEBUG_LIST"
for option in $wanted; do
	grep -q "^CONFIG_$option=y" "$build/.config" || { echo "build.sh: $option was not accepted" >&2; exit 1; }
done
[ -n "${CONFIG_ONLY:-}" ] && exit 0

$polite make -s -C "$source" O="$build" -j"${JOBS:-$(nproc)}" bzImage modules
release=$(kbuild kernelrelease)
rm -rf "$dest/root"
mkdir -p "$dest/root/boot" "$dest/root/usr/src"
cp "$build/arch/x86/boot/bzImage" "$dest/root/boot/vmlinuz-$release"
kbuild INSTALL_MOD_PATH="$dest/root" modules_install
rm -f "$dest/root/lib/modules/$release"/{build,source}
busybox depmod -b "$dest/root" "$release"
ln -s "$build" "$dest/root/usr/src/linux-headers-$release"
echo "$release" > "$dest/release"
echo "build.sh: $release is in $dest"
