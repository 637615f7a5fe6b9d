#!/bin/sh
# Tests of the kernels in Python and torch for aarch64, under qemu's emulation of such a processor:
#
#   tests/kernels/aarch64.sh FOLDER PYTEST_ARGUMENTS…
#
# FOLDER keeps what is downloaded for it: Debian's Python and PyPI's wheels (some 1.5 GB). Needed are Debian with
# qemu-aarch64 and aarch64-linux-gnu-g++, which compiles the kernels: it runs as it is, outside the emulation.
set -eu
folder=$(realpath -m "$1")
shift
root=$folder/root site=$folder/site
here=$(dirname "$(realpath "$0")")

if [ ! -e "$folder/.ready" ]; then
  rm -rf "$folder"
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$root"
  : > "$folder/apt/status"
  apt="apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State=$folder/apt"
  apt="$apt -o Dir::State::status=$folder/apt/status -o Dir::Cache=$folder/apt -o APT::Sandbox::User=root"
  $apt update
  $apt install --yes --download-only --no-install-recommends python3 libstdc++6 libgomp1
  for package in "$folder"/apt/archives/*.deb; do
    dpkg -x "$package" "$root"
  done
  python=$(basename "$(ls "$root"/usr/bin/python3.*)")
  # without their own dependencies, which pip would choose for the processor that it runs on; and torch not as elsewhere
  grep -v '^torch==' "$here/../../constraints.txt" > "$folder/constraints.txt"
  python3 -m pip install --quiet --no-deps --only-binary :all: --target "$site" --python-version "${python#python}" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    -c "$folder/constraints.txt" -r "$here/aarch64.txt"
  touch "$folder/.ready"
fi

python=$(ls "$root"/usr/bin/python3.* | head -1)
export QEMU_LD_PREFIX="$root" PYTHONPATH="$site:$here/../.." CXX=aarch64-linux-gnu-g++ OMP_NUM_THREADS=2
exec qemu-aarch64 -E LD_LIBRARY_PATH= "$python" -m pytest -p no:cacheprovider --timeout=1200 "$@"
