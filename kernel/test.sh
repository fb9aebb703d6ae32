#!/bin/bash
# test.sh - everything that can be tested about kernel/exmap, in emulated machines, from nothing
#
#   kernel/test.sh short [SERIES...]   all tests, short stress, on 2 processors, and proof that the test for stale
#                                      translations fails without flushes: a minute or two a kernel
#   kernel/test.sh full [SERIES...]    also 100 loads, 1 and 4 processors, longer stress, the count of instructions: some
#                                      ten minutes a kernel
#   kernel/test.sh counts [SERIES...]  what it costs, counted: flushes, shootdowns and calls for batches of 512, instructions
#                                      for a page, against page faults and madvise
#   kernel/test.sh debug [SERIES...]   short on kernels that look on, which are built first, and checkpatch, which comes along
#
# SERIES is what kernel/vm/setup.sh knows: 6.1 and 6.12 by default, for full all of it, and for debug 6.12-debug. Kernels, builds and consoles are kept in target/kernel, and fetched or built
# again only if they are not there; a series that cannot be had is left out, loudly. The last line counts tests; the exit status is 0 if all passed, 1 if any failed, and
# 77, with a banner, if QEMU or what else is needed cannot be found. EXMAP_SECONDS overrides how long each stress lasts,
# EXMAP_TESTS which groups of tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
kernel=$PWD/kernel
work=${CARGO_TARGET_DIR:-$PWD/target}/kernel
mode=${1:-short}
shift || true
case $mode in
short | full | counts | debug) ;;
*) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
series=("$@")
[ $# -gt 0 ] || series=(6.1 6.12)
if [ $# = 0 ]; then
	case $mode in
	full) series+=(bookworm-backports 6.18-plain trixie-backports/7.2 trixie-backports) ;;
	debug) series=(6.12-debug) ;;
	esac
fi

. kernel/vm/need.sh
need kernel/test.sh qemu-system-x86_64 busybox cpio gcc make dpkg apt-get bc xz

passed=0 failed=0
count() { # count CONSOLE - adds up its results
	passed=$((passed + $(grep -c '^ok' "$1" || true)))
	failed=$((failed + $(grep -c '^not ok' "$1" || true)))
}

fail() {
	echo "not ok - $*"
	failed=$((failed + 1))
}

# boot SERIES NAME MODULE [run.sh arguments] - with what is in $tests, $stress, $reloads
boot() {
	local out=$work/$1/$2 stage=$work/$1/$2.stage status=0
	rm -rf "$stage" "$out"
	mkdir -p "$stage"
	cp "$work/$1/$3/stripped.ko" "$stage/exmap.ko"
	cp "$work/$1/peek/stripped.ko" "$stage/peek.ko"
	printf 'TESTS="%s"\nSECONDS_STRESS=%s\nRELOADS=%s\nCOST=%s\nSLACK_KIB=%s\n' "$tests" "$stress" "$reloads" "$cost" "$slack" > "$stage/guest.conf"
	echo "== $1: $2"
	# shellcheck disable=SC2086 # the disk is two words, or none
	"$kernel/vm/run.sh" -k "$work/$1" -r "$kernel/selftests/guest.sh" -o "$out" -t "$limit" $disk \
		-M null_blk:nr_devices=0 -a "$arguments" "${@:4}" "$stage"/* kernel/vm/dmesg.sh "$work"/tests/exmap-{test,cost,cost-read} || status=$?
	rm -f "$out/disk" "$out/initramfs.gz"
	return $status
}

check() { # boot, and count
	boot "$@" || fail "$1: $2 ended with $?"
	count "$work/$1/$2/console.log"
}

instructions() { # instructions SERIES - on one processor, whose clock counts them
	cost=1 tests=basic check "$1" instructions build -s 1 -A tcg -q "-icount shift=1,sleep=off"
}

# The style of the kernel. What is left out asks for what a module outside the tree, or a program, cannot have.
style() {
	if perl "$(echo "$work"/linux-source-*/scripts/checkpatch.pl | tr ' ' '\n' | sort -V | tail -1)" --no-tree --strict --terse \
		--ignore LINUX_VERSION_CODE,CONSTANT_COMPARISON,VOLATILE,PREFER_KERNEL_TYPES,EMBEDDED_FUNCTION_NAME,PREFER_DEFINED_ATTRIBUTE_MACRO,MACRO_ARG_REUSE \
		--file "$kernel"/exmap/*.[ch] "$kernel"/selftests/*.[ch] "$kernel"/selftests/peek/*.c > "$work/checkpatch.log"; then
		echo "ok - checkpatch has nothing to say"
		passed=$((passed + 1))
	else
		grep -v '^total:' "$work/checkpatch.log"
		fail "checkpatch has something to say"
	fi
}

# builds_for VERSION [make arguments] - whether the module lets itself be built for a series; what it says is in $said
builds_for() {
	said=$(make -s -f "$kernel/exmap/Kbuild" --eval 'all: ;' VERSION="${1%.*}" PATCHLEVEL="${1#*.}" "${@:2}" 2>&1)
}

# Series that were not tested are refused, with the reason, and can be built all the same.
refusals() {
	local version
	for version in 6.1 6.12 6.18 7.2 7.3; do
		builds_for $version || { fail "the module is refused for $version: $said"; return; }
	done
	for version in 6.2 6.11 6.13 6.120 6.17 6.19 7.1 7.4 8.1; do
		if builds_for $version || [[ $said != *"not on $version"*"UNTESTED=1"* ]]; then
			fail "the module is not refused for $version as it should be: $said"
			return
		fi
		builds_for $version UNTESTED=1 || { fail "the module cannot be built for $version to be tested: $said"; return; }
	done
	echo "ok - the module is refused for series that were not tested, and UNTESTED=1 builds it"
	passed=$((passed + 1))
}

tests=${EXMAP_TESTS:-} stress=${EXMAP_SECONDS:-3} reloads=0 cost=0 had=
mkdir -p "$work/tests"
make -s -C "$kernel/selftests" OUT="$work/tests"
refusals
for s in "${series[@]}"; do
	"$kernel/vm/setup.sh" "$s" "$work/$s" || {
		echo "test.sh: SKIPPED $s: this kernel cannot be had here" >&2
		continue
	}
	had=1
	"$kernel/vm/module.sh" "$work/$s" build
	MODULE=$kernel/selftests/peek "$kernel/vm/module.sh" "$work/$s" peek
	if [ "$mode" = counts ]; then
		tests=count check "$s" two-processors build
		instructions "$s"
		continue
	fi
	"$kernel/vm/module.sh" "$work/$s" build-no-flush EXMAP_TEST_NO_FLUSH=y
	# Finding out a disk's interrupt takes longer there than the kernel allows, so the tests' disk is one in memory. What
	# unmaps free pages and looks at free objects finds nothing that KASAN does not, and takes long.
	case $s in
	*-debug) limit=3600 disk= slack=6000 arguments="debug_pagealloc=off slub_debug=-" ;;
	*) limit=1800 disk="-d 64M" slack=1024 arguments= ;;
	esac
	[ "$mode" != debug ] || style
	if [ "$mode" = full ]; then
		stress=${EXMAP_SECONDS:-30}
		reloads=100 check "$s" two-processors build
		check "$s" four-processors build -s 4
		tests='basic setup alloc read memory uring' check "$s" one-processor build -s 1
		instructions "$s"
	else
		check "$s" two-processors build
	fi
	# Without flushes the test must fail, or it shows nothing.
	if tests='blank stale' boot "$s" no-flush build-no-flush > "$work/$s/no-flush.log"; then
		fail "$s: the tests for stale translations pass without flushes"
	elif grep -q '^not ok .*stale entry' "$work/$s/no-flush/console.log" &&
		grep -q '^not ok .*seen by all' "$work/$s/no-flush/console.log"; then
		grep -E 'stale$|after ALLOC$' "$work/$s/no-flush/console.log" || true
		echo "ok - $s: the tests for stale translations fail without flushes"
		passed=$((passed + 1))
	else
		cat "$work/$s/no-flush.log"
		fail "$s: the tests for stale translations did not fail as they should without flushes"
	fi
done
[ -n "$had" ] || skip kernel/test.sh "None of Debian's kernels can be fetched."
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
