#!/bin/bash
# run.sh - the store on real DAX, in an emulated machine with an NVDIMM that is killed in the middle of writes
#
#   crates/pmem/guest/run.sh KERNEL [KILLS] [MODE]
#
# KERNEL is a folder that kernel/vm/setup.sh has filled; KILLS (3) says how often the machine is killed and what it left
# is checked; MODE is fsdax, a file on ext4 mounted with DAX, or devdax, the bare device. The NVDIMM is a file, which keeps
# its contents when the machine is killed. Each kill comes at a random moment, once the writer has acknowledged something.
# The exit status is 0 if everything that was acknowledged was there each time.
set -euo pipefail
cd "$(dirname "$0")/../../.."
kernel=${1:?the folder of a kernel, see kernel/vm/README.md}
kills=${2:-3}
mode=${3:-fsdax}
work=${CARGO_TARGET_DIR:-$PWD/target}/pmem-guest-$mode
mkdir -p "$work"
cargo build --quiet --package vellum-pmem --example writer
writer=${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/writer
case $mode in
fsdax) modules="nfit nd_pmem crc32c_generic ext4" ;;
devdax) modules="nfit nd_pmem device_dax dax_pmem" ;;
*) echo "run.sh: no mode $mode" >&2 && exit 2 ;;
esac

# libraries PROGRAM... - what they are linked with
libraries() {
	ldd "$@" | grep -o '/[^ ]*\.so[^ ]*' | sort -u
}
# shellcheck disable=SC2046 # one word a library
files=("$writer" "$(command -v mke2fs)" /etc/mke2fs.conf kernel/vm/nvdimm.sh $(libraries "$writer" "$(command -v mke2fs)"))
boot() { # boot ARGUMENTS
	kernel/vm/run.sh -k "$kernel" -r crates/pmem/guest/guest.sh -o "$work/out" -s 1 -m 2G,slots=2,maxmem=8G -t 900 -a "mode=$mode $1" \
		-q "-pidfile $work/qemu.pid -machine q35,nvdimm=on -object memory-backend-file,id=p,share=on,mem-path=$work/nvdimm,size=512M -device nvdimm,memdev=p" \
		-M "$modules" "${files[@]}"
}

fail() { # fail REASON
	tail -20 "$work/console"
	echo "not ok - $1"
	exit 1
}

rm -f "$work/nvdimm"
truncate -s 512M "$work/nvdimm"
for kill in $(seq "$kills"); do
	boot "" > "$work/console" 2>&1 &
	machine=$!
	# The console comes in pieces of some hundred lines.
	until grep -q '^acknowledged' "$work/console"; do
		kill -0 $machine 2> /dev/null || fail "the machine ended before it was killed"
		sleep 0.2
	done
	sleep "$((RANDOM % 10)).$((RANDOM % 1000))"
	kill -KILL "$(cat "$work/qemu.pid")"
	status=0
	wait $machine || status=$?
	[ "$status" = 125 ] || fail "the machine was to be killed while it wrote (status $status)"
	acknowledged=$(sed -n 's/^acknowledged \([0-9]*\)$/\1/p' "$work/console" | tail -1)
	grep '^durable by' "$work/console"
	echo "killed after operation $acknowledged was acknowledged"
	boot "acknowledged=$acknowledged" > "$work/console" 2>&1 || fail "kill $kill"
	grep 'records are right' "$work/console"
done
echo "ok - $kills kills, $mode"
