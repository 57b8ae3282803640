#!/usr/bin/env bash
# Install what the scripts of this directory need on Debian, as root; no service is started.
set -euo pipefail
python=${1:-.venv/bin/python}
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  munge slurm-wlm openssh-server openssh-client openmpi-bin
"$python" -m pip install --quiet asyncssh paramiko dask-jobqueue dask-mpi mpi4py dask-gateway "dask-gateway-server[local]"
