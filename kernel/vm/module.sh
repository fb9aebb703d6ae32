#!/bin/bash
# module.sh KERNEL NAME [make arguments] - build a module for a kernel, in the folder KERNEL/NAME
#
# KERNEL is a folder that setup.sh has filled. MODULE names the module's folder, kernel/exmap by
# default. Out of the tree, so that kernels do not mix. Leaves MODULE.ko and, without symbols, stripped.ko.
set -euo pipefail
kernel=$(realpath "$1")
folder=$kernel/$2
source=$(realpath "${MODULE:-$(dirname "$0")/../exmap}")
module=$(basename "$source")
headers=/usr/src/linux-headers-$(cat "$kernel/release")

# bring FOLDER - copies the sources there; not every module has headers
bring() {
	mkdir -p "$1"
	find "$source" -maxdepth 1 \( -name Kbuild -o -name '*.[ch]' \) -exec cp -u -t "$1" {} +
}

bring "$folder"
if [ -e "$kernel/chroot" ]; then
	# With the compiler that the kernel was built by.
	inside=$kernel/root/build/$2
	bring "$inside"
	# objtool wants to see /proc.
	# shellcheck disable=SC2016 # the arguments are those of the inner shell
	unshare --mount bash -c 'mount -t proc proc "$0/proc" && exec chroot "$@"' \
		"$kernel/root" "$kernel/root" make -s -C "$headers" M="/build/$2" "${@:3}" modules
	cp "$inside/$module.ko" "$folder"
else
	make -s -C "$kernel/root$headers" M="$folder" "${@:3}" modules
fi
strip -g "$folder/$module.ko" -o "$folder/stripped.ko"
