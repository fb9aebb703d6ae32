#!/bin/bash
# setup.sh SERIES DEST - fetch one of Debian's kernels and make it usable without installing it
#
# SERIES is 6.1 or 6.12, which the machine's own Debian 12 has (the stable kernel, and that of the security archive), or
# a suite with others: bookworm-backports, or trixie-backports, which has the newest, or trixie-backports/7.2, an older
# one that the suite still has. Those are read by an apt of their own, and the machine's sources stay as they are. Or it
# is one that build.sh builds, such as 6.18-plain or 6.12-debug. DEST/root receives the image, the modules and the headers,
# unpacked; DEST/release the version's name. Where the kernel was built by a newer compiler than the machine's, DEST/root
# also becomes a small system that has it, by debootstrap, which takes root; DEST/chroot says so. Does nothing if DEST is
# complete. Needs `apt-get update` to have been run at some time.
set -euo pipefail
series=$1
dest=$(realpath -m "$2")
[ -s "$dest/release" ] && exit 0

. "$(dirname "$0")/suite.sh"

meta=linux-headers-amd64 debian=
case $series in
6.1) ;;
6.12) meta=linux-headers-6.12-amd64 ;;
bookworm-backports* | trixie-backports*)
	debian=${series%-backports*}
	apt_of "$debian-backports" "$dest/apt"
	;;
*-plain | *-debug) exec "$(dirname "$0")/build.sh" "$series" "$dest" ;;
*) echo "setup.sh: no kernel of series $series is known; try 6.1, 6.12, bookworm-backports, trixie-backports, trixie-backports/7.2, 6.18-plain or 6.12-debug" >&2; exit 2 ;;
esac
case $series in
*/*)
	release=$(apt-cache pkgnames "linux-headers-${series#*/}." | sed -n 's/^linux-headers-\([0-9.]*+deb[0-9]*-amd64\)$/\1/p' |
		sort -V | tail -1)
	;;
*) release=$(apt-cache depends "$meta" | sed -n 's/.*Depends: linux-headers-\([0-9].*\)/\1/p' | head -1) ;;
esac
[ -n "$release" ] || { echo "setup.sh: no headers of $series are known here; run apt-get update" >&2; exit 1; }
case $release in
6.1.*) kbuild=linux-kbuild-6.1 ;;
*) kbuild=linux-kbuild-${release%-amd64} ;;
esac
# From Debian 14's on the image is in parts.
images=linux-image-$release
if apt-cache show "linux-binary-$release" > /dev/null 2>&1; then
	images="linux-binary-$release linux-modules-$release linux-base-$release"
fi

mkdir -p "$dest/debs"
cd "$dest/debs"
# apt warns that it cannot drop its privileges in this folder, which is of no concern.
# shellcheck disable=SC2086 # several packages
apt-get download -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 $images "linux-headers-$release" "linux-headers-${release%-amd64}-common" "$kbuild" \
	2> >(grep -v '^W: Download is performed unsandboxed' >&2)
rm -rf "$dest/root" "$dest/chroot"
compiler=$(dpkg-deb --fsys-tarfile "linux-headers-$release"_*.deb |
	tar -xO "./usr/src/linux-headers-$release/.kernelvariables" | grep -o 'gcc-[0-9]*$')
if [ -n "$debian" ] && ! command -v "$compiler" > /dev/null; then
	command -v debootstrap > /dev/null || { echo "setup.sh: $release takes $compiler, or debootstrap to fetch it" >&2; exit 1; }
	APT_CONFIG='' debootstrap --variant=minbase --include="$compiler,make,libelf1t64" "$debian" "$dest/root" > "$dest/debootstrap.log" ||
		{ tail -5 "$dest/debootstrap.log" >&2; exit 1; }
	: > "$dest/chroot"
fi
for deb in *.deb; do
	dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$(mkdir -p "$dest/root" && echo "$dest/root")"
done
if [ -e "$dest/root/usr/lib/modules/$release/vmlinuz" ]; then
	mkdir -p "$dest/root/boot"
	mv "$dest/root/usr/lib/modules/$release/vmlinuz" "$dest/root/boot/vmlinuz-$release"
	[ -e "$dest/root/lib" ] || ln -s usr/lib "$dest/root/lib"
fi

# The headers name their other half by an absolute path; and where they bring a vmlinux, the build wants pahole.
headers=$dest/root/usr/src/linux-headers-$release
[ -e "$dest/chroot" ] || sed -i "s#\(^include \|=\)/usr/src/#\1$dest/root/usr/src/#" "$headers/Makefile"
rm -f "$headers/vmlinux"
busybox depmod -b "$dest/root" "$release"
echo "$release" > "$dest/release"
echo "setup.sh: $release is in $dest"
