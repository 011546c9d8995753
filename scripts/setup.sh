#!/bin/sh
# Makes .venv: this package (editable), the model server and the developer's tools, at the versions
# of requirements.lock. The Makefile runs it when something is missing or has changed.
#
#   PYTHON=/path/to/python3.12 sh scripts/setup.sh     choose the interpreter
set -eu
cd "$(dirname "$0")/.."

venv=.venv
lock=requirements.lock

say() { printf '%s\n' "$*" >&2; }

fail() {
    for line; do say "setup: $line"; done
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.13 python3.12 python3.11 python3.14 python
    fi
    for candidate; do
        if new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; $1 is: $("$1" --version 2>&1 || true)" \
        "install one (macOS: brew install python@3.13; Debian: apt install python3 python3-venv)," \
        "or name it: make PYTHON=/path/to/python3.12"
}

make_venv() {
    python=$(find_python)
    say "setup: $("$python" --version) in $venv"
    # --clear: what is there is half made, or its interpreter has gone.
    "$python" -m venv --clear "$venv" || fail \
        "'$python -m venv' does not work here" \
        "on Debian and Ubuntu: apt install python3-venv"
}

# Prefill on a Linux CPU is more than ten times as fast with OpenBLAS; everything works without it.
has_openblas() {
    "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' >/dev/null 2>&1
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$1" # Linux
}

apt_update() { apt-get update -qq; } # Linux

add_openblas() {
    package=libopenblas0-pthread
    if command -v apt-get >/dev/null 2>&1 && # Linux
        [ "$(id -u)" = 0 ]; then
        say "setup: installing $package (the model reads prompts ten times as fast with it)"
        { apt_install "$package" || { apt_update && apt_install "$package"; }; } \
            </dev/null >/dev/null 2>&1 || true
    fi
    has_openblas || say "setup: the model runs slowly without OpenBLAS; install it for ten times" \
        "the speed (Debian: sudo apt install $package; Fedora: sudo dnf install openblas-threads)"
}

# A copied .venv starts the Python of the tree it came from.
foreign() { [ -f "$venv/.ready" ] && [ "$(cat "$venv/.ready")" != "$(pwd -P)" ]; }

if foreign || ! new_enough "$venv/bin/python" ||
    ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi

say "setup: installing the versions of $lock (half a gigabyte, about a minute the first time)"
PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_DISABLE_PIP_VERSION_CHECK
"$venv/bin/python" -m pip install --quiet --requirement "$lock" || fail \
    "pip could not install what $lock names: see its message above" \
    "then run the same command again; what was installed is kept"
# The build backend stands in the lock, so nothing more is fetched here.
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .

if [ "$(uname -s)" = Linux ] && ! has_openblas; then
    add_openblas
fi

pwd -P >"$venv/.ready"
