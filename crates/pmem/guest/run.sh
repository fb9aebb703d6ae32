#!/bin/bash
# run.sh - the store on real DAX, in an emulated machine with an NVDIMM that is killed in the middle of writes
#
#   crates/pmem/guest/run.sh KERNEL [KILLS]
#
# KERNEL is a folder that kernel/vm/setup.sh has filled; KILLS (3) says how often the machine is killed and what it left
# is checked. The NVDIMM is a file, which keeps its contents when the machine is killed. The exit status is 0 if everything
# that was acknowledged was there each time.
set -euo pipefail
cd "$(dirname "$0")/../../.."
kernel=${1:?the folder of a kernel, see kernel/vm/README.md}
kills=${2:-3}
work=${CARGO_TARGET_DIR:-$PWD/target}/pmem-guest
mkdir -p "$work"
cargo build --quiet --package vellum-pmem --example writer
writer=${CARGO_TARGET_DIR:-$PWD/target}/debug/examples/writer

# libraries PROGRAM... - what they are linked with
libraries() {
	ldd "$@" | grep -o '/[^ ]*\.so[^ ]*' | sort -u
}
# shellcheck disable=SC2046 # one word a library
files=("$writer" "$(command -v mke2fs)" /etc/mke2fs.conf kernel/vm/nvdimm.sh $(libraries "$writer" "$(command -v mke2fs)"))
boot() { # boot SECONDS ARGUMENTS
	kernel/vm/run.sh -k "$kernel" -r crates/pmem/guest/guest.sh -o "$work/out" -s 1 -m 2G,slots=2,maxmem=8G -t "$1" -a "$2" \
		-q "-machine q35,nvdimm=on -object memory-backend-file,id=p,share=on,mem-path=$work/nvdimm,size=512M -device nvdimm,memdev=p" \
		-M "nfit nd_pmem crc32c_generic ext4" "${files[@]}"
}

rm -f "$work/nvdimm"
truncate -s 512M "$work/nvdimm"
for kill in $(seq "$kills"); do
	status=0
	boot $((45 + kill * 3)) "" > "$work/console" || status=$?
	acknowledged=$(sed -n 's/^acknowledged \([0-9]*\)$/\1/p' "$work/console" | tail -1)
	if [ "$status" != 124 ] || [ -z "$acknowledged" ]; then
		tail -20 "$work/console"
		echo "not ok - the machine was to be killed while it wrote (status $status)"
		exit 1
	fi
	grep '^durable by' "$work/console"
	echo "killed after operation $acknowledged was acknowledged"
	boot 90 "acknowledged=$acknowledged" > "$work/console" || { tail -20 "$work/console"; echo "not ok - kill $kill"; exit 1; }
	grep 'records are right' "$work/console"
done
echo "ok - $kills kills"
