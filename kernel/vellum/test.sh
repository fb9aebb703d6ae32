#!/bin/bash
# test.sh - Vellum on exmap, in an emulated machine
#
#   kernel/vellum/test.sh short [SERIES]   the tests of the device in vm, and the basic ones and the stress of the pool
#   kernel/vellum/test.sh full [SERIES]    all tests of vm, pool and tree but those of nodes' bytes, each several times as slow as outside, or more
#   kernel/vellum/test.sh stress [SERIES]  threads that look up, scan and change a tree of which little is in memory, each
#                                          page and each value checked, over and over; STRESS_SECONDS says how long (3600)
#   kernel/vellum/test.sh counts [SERIES]  what eviction and lookups by each method cost, counted: TLB shootdowns a page
#
# SERIES is 6.1 or 6.12 (the default). The programs are built here and run there, on a file system on an emulated disk, with
# the module loaded and EXMAP_EXPECTED set, so that what would skip a test elsewhere fails it. Each line `ok` or `not ok` is
# one test program; VELLUM_PACKAGES names other packages, VELLUM_PROGRAMS some of their programs, such as pool-stress; a
# stress also adds up, after each round, what was done. Exit statuses are those of kernel/test.sh: 77 if nothing was tested,
# for want of QEMU.
set -euo pipefail
cd "$(dirname "$0")/../.."
. kernel/vm/need.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/kernel
mode=${1:-short}
series=${2:-6.12}
need "kernel/vellum/test.sh" qemu-system-x86_64 busybox cpio gcc make dpkg apt-get bc xz mke2fs cargo ldd
kernel/vm/setup.sh "$series" "$work/$series" || skip "kernel/vellum/test.sh" "Debian's kernel $series cannot be fetched"
kernel/vm/module.sh "$work/$series" build

# programs CARGO-ARGUMENTS... - builds tests, and prints what was built: path, package and name. As part of the workspace, which
# has built them before if this is a step of `cargo xtask ci`.
programs() {
	cargo test --workspace --no-run "$@" --message-format=json --quiet |
		sed -n 's/.*"package_id":"[^"]*crates\/\([a-z]*\)[^"]*".*"target":{"kind":\["\([a-z]*\)"\].*"name":"\([a-z_]*\)".*"executable":"\([^"]*\)".*/\4 \1 \3/p'
}

# stress_tests PROGRAM - arguments that choose those of its tests in which threads work on exmap beyond memory
stress_tests() {
	case $1 in
	access-it) echo "threads_agree_with threads_agree_without threads_that_load batches::they_do_what batches_meet" ;;
	pool-stress) echo "slow_file real_file" ;;
	esac
}

# Tests that would take minutes there; "full" runs them, too. Crashes happen on a simulated file, not on the device.
program=0 slow="--skip threads_on_a_slow_file --skip crashes::"
case $mode in
short) packages="vm pool" limit=1200 program=600 ;;
# What looks at bytes only, for minutes, and at no memory of a pool, is left out.
full) packages="vm pool access" limit=7200 program=5400 slow="--skip node_damage::" ;;
# A program takes some 400 s on an idle machine, and its clock goes on while the guest is stopped.
stress) packages="access pool" limit=$((${STRESS_SECONDS:-3600} * 2 + 300)) program=3600 slow= ;;
counts) packages= limit=300 ;;
*) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
guest=vellum-$mode stage=$work/$series/vellum-$mode.stage
rm -rf "$stage"
mkdir -p "$stage"
: > "$stage/programs"
for package in ${VELLUM_PACKAGES:-$packages}; do
	chosen=--tests
	case $mode-$package in
	short-vm) chosen="--test exmap --test exmap_flushes" ;;
	short-pool) chosen="--lib --test basics --test resident --test stress" ;;
	stress-access) chosen="--test it" ;;
	stress-pool) chosen="--test stress" ;;
	esac
	# shellcheck disable=SC2086 # several words
	programs $chosen > "$stage/all"
	grep " $package " "$stage/all" > "$stage/built" ||
		{ echo "not ok - no test programs of vellum-$package were built"; exit 1; }
	while read -r path _ name; do
		case " ${VELLUM_PROGRAMS:-$package-$name} " in
		*" $package-$name "*) ;;
		*) continue ;;
		esac
		strip "$path" -o "$stage/$package-$name"
		chosen=
		[ "$mode" != stress ] || chosen=$(stress_tests "$package-$name")
		echo "$package-$name $chosen" >> "$stage/programs"
	done < "$stage/built"
done
case $mode in
counts)
	cargo build --quiet --package vellum-lab
	strip "$target/debug/lab" -o "$stage/lab"
	;;
esac
rm -f "$stage/built" "$stage/all"
printf 'MODE=%s\nSLOW="%s"\nSECONDS_PROGRAM=%s\nSECONDS_STRESS=%s\n' "$mode" "$slow" $program "${STRESS_SECONDS:-3600}" > "$stage/guest.conf"
cp "$work/$series/build/stripped.ko" "$stage/exmap.ko"
find crates/*/src crates/*/tests -name '*.rs' > "$stage/sources"
mapfile -t libraries < <(ldd "$stage"/*-* "$stage"/lab "$(command -v mke2fs)" 2> /dev/null | grep -o '/[^ ]*\.so[^ ]*' | sort -u)

echo "== $series: Vellum, $mode"
status=0
# These run for an hour, in which a guest may be stopped for minutes. Processors that hang are for RCU to notice.
kernel/vm/run.sh -k "$work/$series" -r kernel/vellum/guest.sh -o "$work/$series/$guest" -t "$limit" -m 3G -d 4G -a nosoftlockup \
	-M "crc32c_generic ext4" "$stage"/* kernel/vm/dmesg.sh "$(command -v mke2fs)" /etc/mke2fs.conf "${libraries[@]}" || status=$?
rm -rf "$work/$series/$guest"/{disk,initramfs.gz} "$stage"
exit $status
