# make demo: from nothing to a trained toy model under two batching strategies. make test: what CI runs.
PYTHON3 ?= python3
PYTHON := .venv/bin/python

.PHONY: demo test

demo: .venv/installed
	$(PYTHON) scripts/demo.py

test: .venv/installed
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	# A process for each core, with one thread: the tests' models are too small to share out.
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --numprocesses auto --dist worksteal

# The stamp is written last, so an interrupted installation is taken up again.
.venv/installed: requirements.txt requirements-dev.txt
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON3=python3.12 demo"; exit 1; }
	@$(PYTHON3) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON3) cannot make virtual environments: install python3-venv" \
	         "(on Debian and Ubuntu: sudo apt install python3-venv)"; exit 1; }
	$(PYTHON3) -m venv .venv
	$(PYTHON) -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch .venv/installed
