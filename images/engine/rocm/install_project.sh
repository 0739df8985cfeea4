#!/bin/bash
# Installs the locked dependencies, but for torch and what belongs to it, and then the project.
# Runs in the folder that holds build-requirements.txt, engine.txt and without_torch.py.
# usage: install_project.sh PROJECT-FOLDER
set -euo pipefail

project=${1:?usage: install_project.sh PROJECT-FOLDER}

python3 without_torch.py engine.txt > engine-without-torch.txt
python3 -m pip install --no-cache-dir --no-deps --require-hashes --requirement engine-without-torch.txt

# The wheel is built in an environment of its own, so that the build backend stays out of the image.
python3 -m venv tools
tools/bin/pip install --no-cache-dir --require-hashes --requirement build-requirements.txt
echo "ATOM platform" > "$project/README.md" # named by pyproject.toml
tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels "$project"
python3 -m pip install --no-cache-dir --no-deps --no-index wheels/*.whl
rm -rf tools wheels

python3 -c 'import torch, atom; assert torch.version.hip, "the installation replaced the ROCm torch"'
