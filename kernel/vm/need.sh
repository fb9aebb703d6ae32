# need.sh - for scripts that test in emulated machines: what they do where there are none. To be sourced.

# skip SCRIPT REASON - says loudly that nothing was tested, and ends with status 77
skip() {
	cat >&2 <<BANNER
****************************************************************************
* $1: SKIPPED, nothing was tested. $2
* apt-get update; apt-get install --no-install-recommends qemu-system-x86 busybox-static cpio bc
****************************************************************************
BANNER
	exit 77
}

# need SCRIPT TOOL... - skips unless all tools are there
need() {
	local script=$1 tool missing=
	shift
	for tool; do
		command -v "$tool" > /dev/null || missing="$missing $tool"
	done
	[ -z "$missing" ] || skip "$script" "Missing:$missing"
}
