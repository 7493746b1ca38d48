#!/bin/sh
# The paper on YouCook2, from raw files to a score: sh recipes/youcook2.sh DATA OUT
# DATA holds train.json and val.json (annotations), videos/, speech.pkl or speech.json, t5-base's
# tokenizer.json and a Vid2Seq checkpoint vid2seq.pth (docs/data.md). What is in OUT already
# (features.safetensors, datastore, pretrained) is not made again. For several GPUs write
# `torchrun --nproc-per-node N -m starc` for the `starc` of `starc train`.
# INIT names another start, such as llama:FOLDER (recipes/llama.sh), which brings its own tokenizer.
# FIRST and RECIPE name the recipes of the two stages, SETTINGS holds more of `starc train`'s
# options for both (SECOND for the second only), such as "--set train.precision=bfloat16".
set -eu
data=$1 out=$2
validation="$data/${VALIDATION:-val.json}"
test="$data/${TEST:-${VALIDATION:-val.json}}"
. "$(dirname "$0")/stage.sh"
mkdir -p "$out"
speech=$data/speech.pkl
[ -e "$speech" ] || speech=$data/speech.json

[ -e "$out/features.safetensors" ] || starc features "$data/videos" --out "$out/features.safetensors" \
    --encoder openai/clip-vit-large-patch14
[ -e "$out/datastore" ] || starc datastore build "$data/train.json" --out "$out/datastore" \
    --encoder openai/clip-vit-large-patch14
starc data check --annotations "$data/train.json" --features "$out/features.safetensors" \
    --speech "$speech" --datastore "$out/datastore" --validation "$validation"

files="--annotations $data/train.json --features $out/features.safetensors --speech $speech"
words="--tokenizer $data/tokenizer.json"
rest="--validation $validation ${SETTINGS:-}"

# First stage, from pretrained Vid2Seq; second stage, ten epochs at 1e-5.
if [ -n "${INIT:-}" ]; then
    words=
else
    INIT=$out/pretrained
    [ -e "$INIT" ] || starc import "$data/vid2seq.pth" --out "$INIT"
fi
stage "$out/vid2seq" starc train "${FIRST:-vid2seq}" $files $words $rest --init "$INIT"
stage "$out/starc" starc train "${RECIPE:-youcook2}" $files $words $rest ${SECOND:-} --init "$out/vid2seq/best" \
    --datastore "$out/datastore"

starc evaluate "$out/starc/best" --annotations "$test" \
    --features "$out/features.safetensors" --speech "$speech" --out "$out/predictions.json" --overwrite
starc score "$out/predictions.json" "$test" --protocol paragraph
