# suite.sh - an apt for one suite of Debian's, to be sourced

# apt_of SUITE FOLDER [deb-src] - lets apt, in this script, see one suite and nothing else; what it knows is kept in FOLDER
apt_of() {
	local apt=$2
	mkdir -p "$apt"/{lists/partial,cache/archives/partial,sources}
	cat > "$apt/sources/suite.sources" <<-SOURCES
		Types: ${3:-deb}
		URIs: http://deb.debian.org/debian
		Suites: $1
		Components: main
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	SOURCES
	cat > "$apt/apt.conf" <<-CONF
		Dir::Etc::SourceList "/dev/null";
		Dir::Etc::SourceParts "$apt/sources";
		Dir::State::lists "$apt/lists";
		Dir::Cache "$apt/cache";
	CONF
	export APT_CONFIG=$apt/apt.conf
	apt-get update -q > "$apt/log" 2>&1 || { cat "$apt/log" >&2; exit 1; }
}
