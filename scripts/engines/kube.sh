#!/usr/bin/env bash
# Builds a real Kubernetes (etcd, API server, controllers, scheduler, kubelet,
# kubectl) and KWOK, which plays nodes that this machine has not, into .tmp/kube/bin.
# What is up to date stays. The first time takes some ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

for program in containerd:containerd unshare:util-linux ip:iproute2 iptables:iptables; do
	command -v "${program%%:*}" >/dev/null || missing="${missing:-} ${program##*:}"
done
[ -x /usr/lib/cni/ptp ] || missing="${missing:-} containernetworking-plugins"
if [ -n "${missing:-}" ]; then
	say "Debian's$missing"
	# shellcheck disable=SC2086 # A list.
	apt $missing
fi
scripts/engines/images.sh # for its pods

bin=$PWD/.tmp/kube/bin
mkdir -p "$bin"
export GOTOOLCHAIN=local CGO_ENABLED=0
unset GOFLAGS

version=$(sed -n 's/^\tk8s.io\/kubernetes v\([0-9.]*\).*/\1/p' tools/kube/go.mod)
flags="-X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")"
for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do
	build $program kube "k8s.io/kubernetes/cmd/$program" "$flags"
done
build etcd etcd go.etcd.io/etcd/server/v3 "" # Debian's is too old for watch lists
build kwok kwok sigs.k8s.io/kwok/cmd/kwok ""
if [ ! -e .tmp/kube/stages.yaml ] || [ scripts/engines/kube.sh -nt .tmp/kube/stages.yaml ] || [ tools/kwok/go.mod -nt .tmp/kube/stages.yaml ]; then
	# Without pod-complete: pods run until a test ends them.
	module=$(cd tools/kwok && go list -mod=readonly -m -f '{{.Dir}}' sigs.k8s.io/kwok)
	for f in "$module"/kustomize/stage/node/fast/*.yaml "$module"/kustomize/stage/node/heartbeat-with-lease/*.yaml "$module"/kustomize/stage/pod/fast/pod-{ready,delete}.yaml; do
		case $f in *kustomization.yaml) continue ;; esac
		printf -- '---\n'
		cat "$f"
	done >.tmp/kube/stages.yaml.new
	mv .tmp/kube/stages.yaml.new .tmp/kube/stages.yaml
fi
