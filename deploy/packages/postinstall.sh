#!/bin/sh
# Runs after deb and rpm are unpacked: the service's user, and systemd's view of the unit.
set -e
getent group falaj >/dev/null || groupadd --system falaj
getent passwd falaj >/dev/null || useradd --system --gid falaj --home-dir /var/lib/falaj --no-create-home --shell /usr/sbin/nologin falaj
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade restarts a server that runs: jobs of this machine go on meanwhile.
	systemctl try-restart falaj.service
fi
