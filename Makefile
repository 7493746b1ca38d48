# Two commands are all a newcomer needs: `make demo` and `make test`. Each sets itself up in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
DEMO := .venv/ready-demo
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.PHONY: demo test quick mutants test-slow check bench bench-embedded embedded-data attack fuzz tools clean
.DELETE_ON_ERROR:

# VIDEO=my.mp4 captions that instead of the sample. In a terminal it then shows the page until Ctrl-C. The test
# tools are not installed for it.
demo: $(if $(wildcard $(READY)),$(READY),$(DEMO))
	@$(BIN)/python examples/demo.py "$(VIDEO)"

test: $(READY) tools
	$(BIN)/python -m pytest -n auto --dist loadfile

# A developer's answer in under a minute: layers, files, formats, the parts of the model, `predict` with tiny models.
# Neither videos nor browsers nor training. One thread each: there are as many workers as cores.
SECONDS_ONLY := $(addprefix tests/,decoder files model $(patsubst %,test_%.py,config layers public_names types) \
	output/test_chapters.py output/test_formats.py \
	retrieval/test_captions.py retrieval/test_search.py \
	$(patsubst %,inference/test_%.py,jobs_manifest long_videos models predict))
quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(SECONDS_ONLY)

# Changes of one line that a test must notice; WORDS="span_head GUESS" takes those that hold a word.
mutants: $(READY)
	@$(BIN)/python dev/mutants.py $(WORDS)

test-slow: $(READY) tools
	$(BIN)/python -m pytest -m slow

# The page is tested in Debian's Chromium, frames against ffmpeg's command line; where they cannot be
# installed those tests skip and say so.
tools:
	@for tool in chromium ffmpeg; do command -v $$tool >/dev/null || { test "$$(id -u)" = 0 \
		&& apt-get update -qq && apt-get install -y -qq $$tool >/dev/null; } \
		|| echo "$$tool is not installed: some tests will skip (apt-get install $$tool)"; done

# Scripts are looked at too, for names that have gone from the package; their types may be loose.
LOOSE := arg-type assignment call-overload index misc no-any-return no-untyped-call operator type-arg union-attr \
	unused-ignore var-annotated
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:recipes:tests $(BIN)/mypy --explicit-package-bases --implicit-reexport --follow-imports silent \
		--ignore-missing-imports $(LOOSE:%=--disable-error-code %) benchmarks recipes
	$(BIN)/oxlint --deny-warnings src tests

# QUICK=1 only shows that they run. All run, also after one has failed.
bench: $(READY)
	@failed=; for file in $(filter-out benchmarks/measure.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$file"; quick=$(if $(QUICK),$$(grep -o -m1 -e --quick $$file)); \
		$(BIN)/python $$file $$quick || failed="$$failed $$file"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# 11,000 damaged inputs, 1,000 hostile requests, 310 kills, full disks (docs/security.md). What is done
# is noted in out/attack.json, where the same command goes on.
attack: $(READY)
	@mkdir -p out
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m attack.run --notes out/attack.json

# The scores of the embedded model; DATA is a folder with the files of docs/data.md.
DATA ?= $(or $(STARC_SHARED),../shared)/data
NEEDED := yc2/vid2seq_train.json yc2/vid2seq_val.json asr/timechat_yc2_val_gt_with_whisper_asr.json \
	asr/yc2_timed_asr_353videos_Video_data_all.csv asr/yc2_untimed_transcripts_1736.tar.gz \
	features/yc2_epic_clip_prediction_5s.txt frames/yc2_600videos_1800frames_224px.tar
bench-embedded: embedded-data $(READY)
	@$(BIN)/python benchmarks/embedded.py "$(DATA)"

embedded-data:
	@for file in $(NEEDED); do test -f "$(DATA)/$$file" || missing="$$missing $$file"; done; \
		test -z "$$missing" || { echo "make bench-embedded DATA=FOLDER: $(DATA) lacks$$missing (docs/data.md)"; exit 2; }

# METEOR in C against METEOR in Python on 100,000 hostile pairs, under AddressSanitizer (minutes).
fuzz: $(READY)
	$(BIN)/python packages/starc-eval/tests/fuzz_meteor.py

# torch comes first: a later resolver step must not swap it for another build. pip shows its own bars.
define install
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.11, or make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up .venv (once, one minute or two and the download)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "no venv: apt-get install python3-venv"; exit 1; }
	@$(PIP) torch
	@$(PIP) -e packages/starc-eval
	@$(PIP) -e '.[$(1)]'
	@touch $@
endef

$(DEMO) $(READY): pyproject.toml constraints.txt $(addprefix packages/starc-eval/,pyproject.toml setup.py src/starc_eval/_meteor.c)
	$(call install,$(if $(filter $(DEMO),$@),viewer,dev))

clean:
	rm -rf .venv build out src/*.egg-info $(addprefix packages/starc-eval/,build src/*.egg-info src/starc_eval/*.so)
