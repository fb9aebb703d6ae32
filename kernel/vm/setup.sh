#!/bin/bash
# setup.sh SERIES DEST - fetch one of Debian 12's kernels and make it usable without installing it
#
# SERIES is 6.1 (the stable kernel) or 6.12 (from the security archive). DEST/root receives the image, the modules and
# the headers, unpacked; DEST/release the version's name. Does nothing if DEST is complete. Needs `apt-get update` to
# have been run at some time.
set -euo pipefail
series=$1
dest=$(realpath -m "$2")
[ -s "$dest/release" ] && exit 0

case $series in
6.1) meta=linux-headers-amd64 ;;
6.12) meta=linux-headers-6.12-amd64 ;;
*) echo "setup.sh: no kernel of series $series is known" >&2; exit 2 ;;
esac
release=$(apt-cache depends "$meta" | sed -n 's/.*Depends: linux-headers-\([0-9].*\)/\1/p' | head -1)
[ -n "$release" ] || { echo "setup.sh: $meta is unknown here; run apt-get update" >&2; exit 1; }
case $release in
6.1.*) kbuild=linux-kbuild-6.1 ;;
*) kbuild=linux-kbuild-${release%-amd64} ;;
esac

mkdir -p "$dest/debs"
cd "$dest/debs"
# apt warns that it cannot drop its privileges in this folder, which is of no concern.
apt-get download -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "linux-image-$release" "linux-headers-$release" "linux-headers-${release%-amd64}-common" "$kbuild" \
	2> >(grep -v '^W: Download is performed unsandboxed' >&2)
rm -rf "$dest/root"
for deb in *.deb; do
	dpkg -x "$deb" "$dest/root"
done

# The headers name their other half by an absolute path; and where they bring a vmlinux, the build wants pahole.
headers=$dest/root/usr/src/linux-headers-$release
sed -i "s#^include /usr/src/#include $dest/root/usr/src/#" "$headers/Makefile"
rm -f "$headers/vmlinux"
busybox depmod -b "$dest/root" "$release"
echo "$release" > "$dest/release"
echo "setup.sh: $release is in $dest"
