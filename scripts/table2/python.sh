# The Python that runs everything here; sourced by settings.sh and all.sh.

PYTHON=${PYTHON:-python}
[[ $PYTHON != */* ]] || PYTHON=$(realpath -s "$PYTHON") # these scripts change folders
export PYTHON
python() { command "$PYTHON" "$@"; }
if ! python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
  echo "$PYTHON: not a Python with torch; activate the environment that requirements.txt was" \
    "installed into, or name its Python: PYTHON=.venv/bin/python" >&2
  exit 1
fi
