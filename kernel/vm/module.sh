#!/bin/bash
# module.sh KERNEL NAME [make arguments] - build kernel/exmap for a kernel, in the folder KERNEL/NAME
#
# KERNEL is a folder that setup.sh or debug-kernel.sh has filled. Out of the tree, so that kernels do not mix. Leaves
# exmap.ko and, without symbols, stripped.ko.
set -euo pipefail
kernel=$(realpath "$1")
folder=$kernel/$2
headers=/usr/src/linux-headers-$(cat "$kernel/release")
mkdir -p "$folder"
cp -u "$(dirname "$0")"/../exmap/{Kbuild,*.c,*.h} "$folder"
if [ -e "$kernel/chroot" ]; then
	# With the compiler that the kernel was built by.
	inside=$kernel/root/build/$2
	mkdir -p "$inside"
	cp -u "$folder"/{Kbuild,*.c,*.h} "$inside"
	# objtool wants to see /proc.
	# shellcheck disable=SC2016 # the arguments are those of the inner shell
	unshare --mount bash -c 'mount -t proc proc "$0/proc" && exec chroot "$@"' \
		"$kernel/root" "$kernel/root" make -s -C "$headers" M="/build/$2" "${@:3}" modules
	cp "$inside/exmap.ko" "$folder"
else
	make -s -C "$kernel/root$headers" M="$folder" "${@:3}" modules
fi
strip -g "$folder/exmap.ko" -o "$folder/stripped.ko"
