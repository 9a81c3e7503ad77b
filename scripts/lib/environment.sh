# Sourced by scripts/test and scripts/demo: a virtual environment that is as new as pyproject.toml.

# Print a Python 3.11 or later, or say what is missing.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "Python 3.11 or later is needed: install it, or name one in PYTHON" >&2
    return 1
}

# make_environment FOLDER REQUIREMENT...
# Local ones, which are paths, are installed editable. Does nothing if FOLDER is up to date.
make_environment() {
    local folder="$1" stamp="$1/.installed" wanted python
    shift
    wanted="$(printf '%s\n' "$@"; cat pyproject.toml example_project/pyproject.toml)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    python="$(find_python)"
    echo "== making the environment in $folder (a few minutes the first time)"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
    local arguments=() requirement
    for requirement in "$@"; do
        case "$requirement" in
            .* | /*) arguments+=(--editable "$requirement") ;;
            *) arguments+=("$requirement") ;;
        esac
    done
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${arguments[@]}"
    printf '%s' "$wanted" > "$stamp"
}
