#!/bin/sh
# kubectl-atom, as krew installs it: a wheel and the hashes of its packages. The first run makes an
# environment of the user; later runs start what is in it. KUBECTL_ATOM_PYTHON chooses the Python.
set -eu

here=$(dirname -- "$(readlink -f -- "$0")")
wheel=$(basename -- "$here"/*.whl)
home=${XDG_DATA_HOME:-$HOME/.local/share}/kubectl-atom/${wheel%.whl}

fail() {
    echo "error: $1" >&2
    exit 1
}

find_python() {
    for name in ${KUBECTL_ATOM_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "kubectl atom needs Python 3.11 or newer, and none is in the PATH; install it, or name it in KUBECTL_ATOM_PYTHON"
}

install_packages() {
    python=$(find_python)
    echo "kubectl atom: installing its packages into $home, once" >&2
    rm -rf -- "$home"
    # Pip's output goes to stderr: the first answer may be piped.
    {
        "$python" -m venv "$home" &&
            "$home/bin/python" -m pip install --quiet --disable-pip-version-check \
                --require-hashes --requirement "$here/requirements.txt" &&
            "$home/bin/python" -m pip install --quiet --disable-pip-version-check \
                --no-deps "$here/$wheel"
    } >&2 || fail "the packages cannot be installed into $home (see above); check the connection to your package index, and run the command again"
    touch "$home/.complete"
}

mkdir -p -- "$(dirname -- "$home")"
if [ ! -e "$home/.complete" ]; then
    exec 9>"$home.lock"
    flock 9 # of two first runs, one installs
    [ -e "$home/.complete" ] || install_packages
    exec 9>&-
fi
exec "$home/bin/kubectl-atom" "$@"
