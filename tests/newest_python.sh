#!/usr/bin/env bash
# Run the tests on a Python that Debian's unstable has and this system has not, with what has wheels for it:
#     tests/newest_python.sh 3.15 -n 2 --dist loadfile tests/store
# By hand and as root: `debootstrap` makes that system in $FOLDER, once; nothing stays mounted there.
set -euo pipefail
version=$1
shift
source=$(cd "$(dirname "$0")/.." && pwd)
folder=${FOLDER:-/var/tmp/dask-mars-sid}
packages=ca-certificates,gcc,git,iproute2,libc6-dev,make,openssl,procps
if [ ! -e "$folder/etc/debian_version" ]; then
  debootstrap --variant=minbase --include="$packages" sid "$folder" ${MIRROR:+"$MIRROR"}
fi
rm -rf "$folder/root/source" && mkdir -p "$folder/root/source"
git -C "$source" ls-files -z | tar -C "$source" --null -T - -c | tar -x -C "$folder/root/source"
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
cat > "$folder/root/install.py" <<'PYTHON'
"""Install what dask_mars needs, and those of its tests' packages that have wheels."""
import subprocess
import sys
import tomllib

project = tomllib.loads(open("pyproject.toml", encoding="utf-8").read())["project"]
tests = project["optional-dependencies"]["test"]
wheels = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
subprocess.run([*wheels, "setuptools", *project["dependencies"]], check=True)
if subprocess.run([*wheels, *tests], capture_output=True).returncode:
    for package in tests:
        if subprocess.run([*wheels, package], capture_output=True).returncode:
            print(f"without {package}", flush=True)
PYTHON
exec unshare --mount bash -euo pipefail -c '
folder=$1 version=$2
shift 2
for path in proc sys dev dev/shm; do
  mkdir -p "$folder/$path" && mount --rbind "/$path" "$folder/$path"
done
[ ! -d /etc/ssl/certs ] || mount --bind /etc/ssl/certs "$folder/etc/ssl/certs"
exec chroot "$folder" bash -euo pipefail -c "
version=\$1
shift
cd /root/source
if ! command -v python\$version >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python\$version-dev python\$version-venv >/dev/null
fi
[ -d /root/\$version ] || python\$version -m venv /root/\$version
if ! cmp -s pyproject.toml /root/\$version/installed.toml; then
  /root/\$version/bin/python /root/install.py
  cp pyproject.toml /root/\$version/installed.toml
fi
/root/\$version/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
exec /root/\$version/bin/python -m pytest -q \"\$@\"
" bash "$version" "$@"
' bash "$folder" "$version" "$@"
