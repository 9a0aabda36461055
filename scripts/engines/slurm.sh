#!/usr/bin/env bash
# A Slurm of virtual nodes on this machine, for people:
#
#	scripts/engines/slurm.sh up DIR [NODES]   starts it and prints SLURM_CONF=…
#	scripts/engines/slurm.sh status DIR       its nodes and jobs
#	scripts/engines/slurm.sh down DIR         ends it
#
# Tests start the same by the Go package slurmtest.
set -euo pipefail
cd "$(dirname "$0")/../.."
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
dir=$(mkdir -p "$2" && cd "$2" && pwd)
export SLURM_CONF=$dir/etc/slurm.conf

# alive: whether the cluster's own process lives, by number and program.
alive() { [ -r "$dir/pid" ] && [ "$(readlink "/proc/$(cat "$dir/pid")/exe")" = "$dir/cluster" ]; }

case $1 in
up)
	if alive; then
		echo "SLURM_CONF=$SLURM_CONF"
		exit
	fi
	go build -tags=duckdb_arrow -buildvcs=false -o "$dir/cluster" ./test/engines/slurm/cluster
	: >"$dir/log.txt"
	setsid "$dir/cluster" -dir "$dir" -nodes "${3:-4}" >"$dir/log.txt" 2>&1 </dev/null &
	echo $! >"$dir/pid"
	until grep -q '^SLURM_CONF=' "$dir/log.txt"; do
		alive || { cat "$dir/log.txt" >&2; exit 1; }
		read -r -t 0.2 <> <(:) || true
	done
	cat "$dir/log.txt"
	;;
status)
	alive || { echo "no cluster runs in $dir" >&2; exit 1; }
	sinfo
	squeue
	;;
down)
	alive || exit 0
	pid=$(cat "$dir/pid")
	kill "$pid"
	while alive; do read -r -t 0.1 <> <(:) || true; done
	rm -f "$dir/pid"
	;;
*) usage ;;
esac
