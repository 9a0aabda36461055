#!/usr/bin/env bash
# Builds a release into dist/VERSION/: archives, deb and rpm for amd64 and arm64, an OCI
# image of both, bills of materials, checksums, and a signature when KEY names a key.
#
#   KEY      an ECDSA P-256 private key (PEM), to sign SHA256SUMS
#   ARCHES   "amd64 arm64", or one of them
#   IMAGE    0 leaves out the image, which needs Debian's package mirror
#
# The same commit, compilers and Debian packages give the same bytes: each file has the
# commit's time. The version is the tag of the commit; a tree with changes is refused.
# GOFLAGS, LDFLAGS and VERSION come from the Makefile.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
export LC_ALL=C TZ=UTC
export CI=true # a build without the console is no release

read -r -a arches <<<"${ARCHES:-amd64 arm64}"
[ "$VERSION" != dev ] || die "This is no git clone. A release has the version of a tag, and the commit's time."
changed=$(git status --porcelain --untracked-files=all)
[ -z "$changed" ] || die "A release is built from a commit. Commit or remove these first:
$changed"
[ -z "${KEY:-}" ] || [ -r "$KEY" ] || die "KEY=$KEY cannot be read."
version=${VERSION#v}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || version=0.0.0-g$version # a commit before the first tag
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
dist=dist/v$version
rm -rf "$dist.new"
mkdir -p "$dist.new" .tmp/release

bin=$PWD/.tmp/bin
mkdir -p "$bin"
build release release . ""
build nfpm release github.com/goreleaser/nfpm/v2/cmd/nfpm ""
build cyclonedx-gomod release github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod ""
UV=$(sed -n 's/^UV=//p' scripts/deps.sh)
ORT=$(sed -n 's/^ORT=//p' scripts/deps.sh)

# base ARCH: the Debian packages that the image is made of, unpacked, in .tmp/release.
# No maintainer script runs, so that no emulator is needed; what they would do that
# counts here is done below.
base() {
	local tar=.tmp/release/base-$1.tar
	command -v mmdebstrap >/dev/null || apt mmdebstrap
	say "Debian packages for the image, $1"
	# shellcheck disable=SC2016 # $1 is the hook's
	retry mmdebstrap --quiet --variant=extract --architectures="$1" \
		--include=base-files,base-passwd,ca-certificates,libc6,libstdc++6,netbase,python3,python3-venv,tzdata,util-linux \
		--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
		--extract-hook='for d in "$1"/var/cache/apt/archives/*.deb; do
			mkdir -p "$1/var/lib/dpkg/status.d"
			dpkg-deb -f "$d" >"$1/var/lib/dpkg/status.d/$(dpkg-deb -f "$d" Package)"
		done' \
		--extract-hook='cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"
			cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"
			echo "falaj:x:10001:10001::/var/lib/falaj:/usr/sbin/nologin" >>"$1/etc/passwd"
			echo "falaj:x:10001:" >>"$1/etc/group"
			mkdir -p "$1/etc/ssl/certs" && cat "$1"/usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt"
			install -d -m 700 -o 10001 -g 10001 "$1/var/lib/falaj"
			rm -rf "$1/etc/hostname" "$1/etc/resolv.conf" "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/share/info/* "$1"/var/log/* "$1"/boot
			find "$1/usr/share/doc" -type f ! -name copyright -delete' \
		bookworm "${tar%.tar}.new.tar" >".tmp/release/base-$1.log" 2>&1 || die "$(tail -n 5 ".tmp/release/base-$1.log")"
	mv "${tar%.tar}.new.tar" "$tar"
	tar -xOf "$tar" --wildcards './var/lib/dpkg/status.d/*' |
		awk '/^Package:/ {p=$2} /^Version:/ {v=$2} /^Architecture:/ {a=$2} p && v && a {print p, v, a; p=v=a=""}' |
		sort >".tmp/release/base-$1.txt"
}

# What others built is taken out of the wheels again, whose digests are checked: what lies
# in bin/ and lib/ may be anything. runtimes ARCH DIRECTORY
runtimes() {
	local machine=x86_64
	[ "$1" = amd64 ] || machine=aarch64
	fetch scripts/uv.txt --platform "manylinux2014_$machine" --python-version 3.12
	fetch scripts/onnxruntime.txt --platform "manylinux_2_28_$machine" --platform "manylinux_2_27_$machine" --python-version 3.12
	unpack ".tmp/wheels/uv-$UV-"*"$machine"*.whl "uv-$UV.data/scripts/uv" "$2/bin/uv"
	unpack ".tmp/wheels/onnxruntime-$ORT-"*cp312*"$machine"*.whl "onnxruntime/capi/libonnxruntime.so.$ORT" "$2/lib/libonnxruntime.so"
	chmod 755 "$2/bin/uv"
	chmod 644 "$2/lib/libonnxruntime.so"
}

images=()
for arch in "${arches[@]}"; do
	case "$arch" in
	amd64)
		make --no-print-directory build
		from=bin
		;;
	arm64)
		make --no-print-directory build-arm64
		from=bin/arm64
		;;
	*) die "ARCHES may name amd64 and arm64, not $arch." ;;
	esac
	say "archive, deb and rpm for $arch"
	name=falaj-$version-linux-$arch
	stage=.tmp/release/$name
	rm -rf "$stage"
	mkdir -p "$stage"/{bin,lib,doc,deploy}
	install -m 755 "$from/falaj" "$from/falaj-worker" "$stage/bin/"
	runtimes "$arch" "$stage"
	install -m 644 LICENSE README.md CHANGELOG.md docs/guides/*.md docs/reference/*.md "$stage/doc/"
	sbom=("-version" "$version" "-epoch" "$SOURCE_DATE_EPOCH" -lock console/package-lock.json
		-component "pkg:pypi/uv@$UV" -component "pkg:pypi/onnxruntime@$ORT")
	# What the program itself says it was built from. Licences are what the tool detects in
	# the modules' files, as evidence.
	"$bin/cyclonedx-gomod" bin -json -std -noserial -notimestamp -licenses -version "v$version" \
		-output ".tmp/release/modules-$arch.json" "$from/falaj" 2>".tmp/release/modules-$arch.log" ||
		die "$(tail -n 5 ".tmp/release/modules-$arch.log")"
	"$bin/release" sbom "${sbom[@]}" -modules ".tmp/release/modules-$arch.json" -out "$stage/doc/sbom.cdx.json"
	cp "$stage/doc/sbom.cdx.json" "$dist.new/$name.cdx.json"
	install -m 644 deploy/systemd/falaj.service deploy/packages/falaj.yaml deploy/kubernetes/rbac.yaml "$stage/deploy/"
	find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	for format in deb rpm; do
		STAGE=$stage ARCH=$arch VERSION=$version "$bin/nfpm" package --packager $format --config deploy/packages/nfpm.yaml --target "$dist.new/" >.tmp/release/nfpm.log ||
			die "$(cat .tmp/release/nfpm.log)"
	done
	tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w --mtime="@$SOURCE_DATE_EPOCH" -C .tmp/release -c "$name" |
		gzip -n >"$dist.new/$name.tar.gz"
	if [ "${IMAGE:-1}" != 0 ]; then
		base "$arch"
		rm -rf "$stage/deploy"
		"$bin/release" sbom "${sbom[@]}" -modules ".tmp/release/modules-$arch.json" -packages ".tmp/release/base-$arch.txt" \
			-out "$stage/doc/sbom.cdx.json"
		cp "$stage/doc/sbom.cdx.json" "$dist.new/falaj-$version-image-$arch.cdx.json"
		images+=(-arch "$arch=.tmp/release/base-$arch.tar,$stage")
	fi
done

if [ ${#images[@]} -gt 0 ]; then
	say "OCI image"
	rm -rf .tmp/release/image
	"$bin/release" image -version "$version" -commit "$commit" -epoch "$SOURCE_DATE_EPOCH" -out .tmp/release/image "${images[@]}"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w --mtime="@$SOURCE_DATE_EPOCH" -C .tmp/release/image -cf "$dist.new/falaj-$version-image.oci.tar" .
fi

(cd "$dist.new" && sha256sum -- *) >.tmp/release/SHA256SUMS
mv .tmp/release/SHA256SUMS "$dist.new/"
if [ -n "${KEY:-}" ]; then
	openssl dgst -sha256 -sign "$KEY" "$dist.new/SHA256SUMS" | base64 -w0 >"$dist.new/SHA256SUMS.sig"
	openssl pkey -in "$KEY" -pubout -out "$dist.new/falaj.pub"
else
	say "not signed: KEY names no key"
fi
rm -rf "$dist" .tmp/release/falaj-*
mv "$dist.new" "$dist"
ls -lh "$dist" | awk 'NR > 1 { print "  " $5 "\t" $9 }'
