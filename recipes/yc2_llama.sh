#!/bin/sh
# The components of STaRC with a language model as decoder (docs/benchmarks.md): sh recipes/yc2_llama.sh DATA OUT
# YouCook2 with what is real at hand (DATA as in docs/data.md). Vid2Seq, whose decoder begins as the language
# model of the embedded caption writer, is trained once on STAGE1 of the videos with timed speech; the saliency
# head learns on all of them without the decoder. From there every row goes through the same second stage on
# STAGE2 other videos and captions HELD ones. Retrieved captions are read as words. Some three hours of one core;
# SEEDS trainings per row, JOBS at a time.
set -eu
data=$1 out=$2
here=$(dirname "$0")
. "$here/stage.sh"
mkdir -p "$out"
once "$out/data" python "$here/prepare_youcook2.py" "$data" "$out/data"
once "$out/llama" python "$here/caption_writer.py" export \
    "${MODEL:-$here/../src/starc/assets/small-youcook2}" "$out/llama"
once "$out/llama-first.json" python - "$out" "${STAGE1:-165}" "${STAGE2:-40}" "${HELD:-30}" <<'END'
import json, sys
from pathlib import Path
out = Path(sys.argv[1])
first, second, held = map(int, sys.argv[2:])
timed = json.loads((out / "data/timed.json").read_text())
names = sorted(timed)
chosen = json.loads((out / "data/choose.json").read_text())
for name, some in (("second", {n: timed[n] for n in names[first : first + second]}),
                   ("held", {n: chosen[n] for n in list(chosen)[:held]}),
                   ("first", {n: timed[n] for n in names[:first]})):
    (out / f"llama-{name}.json").write_text(json.dumps(some))
END

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
files="--features $out/data/evidence.safetensors --speech $out/data/speech.json"
set -- --set model.llama.lora=16 --set model.inputs.frames=50 --set model.inputs.speech_tokens=320 \
    --set model.decoding.max_tokens=128 --set train.relative_rate=false \
    --set train.batch=4 --set train.epochs=1 --set train.clip=1 \
    --set train.save_every=20 ${SETTINGS:-}
stage "$out/llama-vid2seq" starc train tiny_youcook2 --annotations "$out/llama-first.json" $files --init "llama:$out/llama" \
    --set model.swsa=none --set model.saliency=none --set model.retrieval=none --set model.prompt=none \
    --set train.learning_rate=1e-3 --set train.fresh_rate=2e-3 "$@"
text="--set model.retrieval.form=text --set model.retrieval.text_tokens=64"
once "$out/llama-start" python "$here/saliency_first.py" "$out/llama-vid2seq/last" "$out/data" "$out/llama-start" $text
starc ablate components tiny_youcook2 --run "$out/llama-components" --annotations "$out/llama-second.json" $files \
    --datastore "$out/data/datastore" --validation "$out/llama-held.json" --init "$out/llama-start" \
    $text --set train.learning_rate=3e-4 "$@" --seeds "${SEEDS:-3}" --jobs "${JOBS:-1}"
cat "$out/llama-components/table.md"
