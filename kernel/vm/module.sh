#!/bin/bash
# module.sh KERNEL NAME [make arguments] - build kernel/exmap for a kernel, in the folder KERNEL/NAME
#
# KERNEL is a folder that setup.sh or debug-kernel.sh has filled. Out of the tree, so that kernels do not mix. Leaves
# exmap.ko and, without symbols, stripped.ko.
set -euo pipefail
kernel=$(realpath "$1")
folder=$kernel/$2
mkdir -p "$folder"
cp -u "$(dirname "$0")"/../exmap/{Kbuild,*.c,*.h} "$folder"
make -s -C "$kernel/root/usr/src/linux-headers-$(cat "$kernel/release")" M="$folder" "${@:3}" modules
strip -g "$folder/exmap.ko" -o "$folder/stripped.ko"
