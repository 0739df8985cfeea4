#!/bin/bash
# Builds AITER at a pinned commit into a folder and installs it from there into the base image's Python.
# usage: AITER_COMMIT=… GPU_ARCHS=… PREBUILD_KERNELS=… MAX_JOBS=… install_aiter.sh FOLDER
set -euo pipefail

folder=${1:?usage: install_aiter.sh FOLDER}
: "${AITER_COMMIT:?the commit of github.com/ROCm/aiter to build}"
: "${GPU_ARCHS:?the GPU targets, such as gfx942;gfx950}"
export GPU_ARCHS PREBUILD_KERNELS="${PREBUILD_KERNELS:-1}" MAX_JOBS="${MAX_JOBS:-16}"
# The base's Triton belongs to its torch; AITER's setup would replace it.
export AITER_USE_SYSTEM_TRITON=1

if ! python3 -c 'import sys, torch; sys.exit(torch.version.hip is None)'; then
    echo "install_aiter.sh: the torch of the base image is not built for ROCm; choose a rocm/pytorch image as BASE" >&2
    exit 1
fi

torch_before=$(python3 -c 'import torch; print(torch.__version__)')

git init --quiet "$folder"
cd "$folder"
git remote add origin https://github.com/ROCm/aiter.git
git fetch --quiet --depth 1 origin "$AITER_COMMIT"
git checkout --quiet --detach FETCH_HEAD
git submodule update --quiet --init --recursive --depth 1

python3 -m pip install --no-cache-dir --requirement requirements.txt
python3 setup.py develop
# What the build left that nothing reads at run time.
rm -rf .git build

torch_after=$(python3 -c 'import torch; print(torch.__version__)')
if [ "$torch_before" != "$torch_after" ]; then
    echo "install_aiter.sh: AITER's requirements replaced torch $torch_before by $torch_after; pin its version in the base" >&2
    exit 1
fi
