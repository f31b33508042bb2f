# Choose the Python that runs everything here. settings.sh and all.sh source this file.

PYTHON=${PYTHON:-python}
[[ $PYTHON != */* ]] || PYTHON=$(realpath -s "$PYTHON") # an absolute path, because these scripts change folders
export PYTHON
python() { command "$PYTHON" "$@"; }
if ! python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
  echo "$PYTHON: not a Python with torch; activate the environment that requirements.txt was" \
    "installed into, or set PYTHON to its Python: PYTHON=.venv/bin/python" >&2
  exit 1
fi
