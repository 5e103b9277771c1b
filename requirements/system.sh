#!/bin/sh
# What the tests and the demo need of the system besides Python: installed on Debian as root, named elsewhere.
set -eu
python=${1:-python3}
missing=
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
command -v git >/dev/null || missing="$missing git"
# A small file system is mounted to be filled up.
command -v mount >/dev/null || missing="$missing mount"
[ -z "$missing" ] && exit 0
if [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ]; then
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
    exit 0
fi
echo "please install:$missing" >&2
exit 1
