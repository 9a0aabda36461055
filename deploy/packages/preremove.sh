#!/bin/sh
# Runs before the files go. deb: remove or upgrade; rpm: 0 or 1 packages stay.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now falaj.service
	fi
	;;
esac
