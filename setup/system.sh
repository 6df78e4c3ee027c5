#!/bin/sh
# Installs the system packages named as arguments that are not there yet (Debian, Ubuntu).
set -eu
missing=
for package in "$@"; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
# The interpreter's own venv module, where the distribution splits it off.
for python in python3 /usr/bin/python3; do
	if command -v "$python" >/dev/null 2>&1 && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
		missing="$missing python3-venv"
		break
	fi
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "stockade: run as root, or install first:$missing" >&2
	exit 1
fi
echo "stockade: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of package names
apt-get install -y -qq --no-install-recommends $missing >/dev/null
