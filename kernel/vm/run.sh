#!/bin/bash
# run.sh - boot a kernel in an emulated machine, run one script in it, report the script's exit status
#
#   run.sh -k KERNEL -r SCRIPT -o OUT [options] [FILE...]
#
#   -k KERNEL   a folder that setup.sh has filled
#   -r SCRIPT   run as root by busybox sh in the guest, in /; FILEs lie beside it
#   -o OUT      folder for the initramfs and console.log; emptied first
#   -s N        processors (2)          -m SIZE     memory (1G)
#   -t SECONDS  time limit (120)        -M "A B"    modules to load, in order, with what they need; A:x=1,y=2 sets parameters
#   -d SIZE     attach an empty disk, /dev/vda, kept in OUT/disk (its modules are added)
#   -a "ARGS"   kernel arguments        -q "ARGS"   qemu arguments
#   -A ACCEL    qemu's accelerator (tcg,thread=multi)
#
# The exit status is the script's; 124 if the time was up; 125 if the guest died otherwise. Nothing in here is about
# exmap: README.md shows guests with persistent memory and with swap.
set -euo pipefail
cpus=2 memory=1G limit=120 modules= disk= kargs= qargs= kernel= script= out=
accel=tcg,thread=multi
while getopts k:r:o:s:m:t:M:d:a:q:A: option; do
	case $option in
	k) kernel=$OPTARG ;; r) script=$OPTARG ;; o) out=$OPTARG ;;
	s) cpus=$OPTARG ;; m) memory=$OPTARG ;; t) limit=$OPTARG ;;
	M) modules=$OPTARG ;; d) disk=$OPTARG ;; a) kargs=$OPTARG ;; q) qargs=$OPTARG ;; A) accel=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[ -n "$kernel" ] && [ -n "$script" ] && [ -n "$out" ] || { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }

release=$(cat "$kernel/release")
library=$kernel/root/lib/modules/$release
# Never somebody else's folder.
if [ -n "$(ls -A "$out" 2> /dev/null)" ] && ! [ -e "$out/console.log" ]; then
	echo "run.sh: $out is not empty, and no guest's folder" >&2
	exit 2
fi
rm -rf "$out"
mkdir -p "$out"
: > "$out/console.log"
mkdir -p "$out"/root/{bin,proc,sys,dev,tmp,mnt,etc,modules}
root=$out/root

if [ -n "$disk" ]; then
	truncate -s "$disk" "$out/disk"
	modules="virtio_pci virtio_blk $modules"
	qargs="$qargs -drive file=$out/disk,if=none,id=vd0,format=raw,cache=none -device virtio-blk-pci,drive=vd0"
fi

# add_module NAME - copy a module after all that it depends on, numbered in the order of loading; built-in ones need not
number=100
add_module() {
	local line dep
	line=$(grep -E "(^|/)${1//[-_]/[-_]}\.ko(\.xz)?:" "$library/modules.dep" | head -1) || true
	if [ -z "$line" ]; then
		grep -qE "/${1//[-_]/[-_]}\.ko$" "$library/modules.builtin" && return
		echo "run.sh: no module $1 in $release" >&2
		exit 1
	fi
	# modules.dep lists what is needed last first.
	for dep in $(echo "${line#*:}" | tr ' ' '\n' | tac) "${line%%:*}"; do
		dep=${dep#/}
		dep=${dep#lib/modules/"$release"/}
		local plain
		plain=$(basename "${dep%.xz}")
		ls "$root/modules" | grep -q -- "-$plain$" && continue
		number=$((number + 1))
		case $dep in
		*.xz) xz -dc "$library/$dep" > "$root/modules/$number-$plain" ;;
		*) cp "$library/$dep" "$root/modules/$number-$plain" ;;
		esac
	done
}
for module in $modules; do
	add_module "${module%%:*}"
	case $module in
	*:*) echo "${module#*:}" | tr ',' ' ' > "$root/modules/$(basename "$(ls "$root"/modules/*.ko | tail -1)").parameters" ;;
	esac
done

cp "$(command -v busybox)" "$root/bin/busybox"
cp "$script" "$root/guest.sh"
for file in "$@"; do
	cp -rL "$file" "$root/"
done
cat > "$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/ HOME=/
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
dmesg -n 4
for module in /modules/*.ko; do
	[ -e "$module" ] || continue
	# shellcheck disable=SC2046
	insmod "$module" $(cat "$module.parameters" 2> /dev/null) || echo "vm: insmod $module failed"
done
echo "vm: ready after $(cut -d' ' -f1 /proc/uptime) s"
sh /guest.sh
echo "vm: exit status $?"
sync
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$out/initramfs.gz"
rm -rf "$root"

# A guest may be slow, or stopped as a whole for a minute or two, of which its kernel would complain.
patience="watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=300 workqueue.watchdog_thresh=300"
set +e
# shellcheck disable=SC2086 # the arguments given as strings are meant to be split
timeout --foreground --kill-after=5 "$limit" nice -n "${VM_NICE:-10}" qemu-system-x86_64 -accel "$accel" -cpu "${VM_CPU:-max}" -smp "$cpus" \
	-m "$memory" -nodefaults -nographic -no-reboot -serial stdio $qargs \
	-kernel "$kernel/root/boot/vmlinuz-$release" -initrd "$out/initramfs.gz" \
	-append "console=ttyS0 panic=-1 oops=panic no_timer_check quiet $patience $kargs" < /dev/null 2>&1 | sed -u 's/\r//g' | tee "$out/console.log"
qemu=${PIPESTATUS[0]}
set -e
status=$(sed -n 's/^vm: exit status \([0-9]*\)$/\1/p' "$out/console.log" | tail -1)
if [ -n "$status" ]; then
	exit "$status"
fi
echo "run.sh: the guest did not finish (qemu ended with $qemu, the limit is $limit s). What it said last:" >&2
tail -3 "$out/console.log" | sed 's/^/run.sh:   /' >&2
[ "$qemu" = 124 ] && exit 124
exit 125
