#!/bin/sh
# The paper on YouCook2, from raw files to a score: sh recipes/youcook2.sh DATA OUT
# DATA holds train.json and val.json (annotations), videos/, speech.pkl or speech.json, t5-base's
# tokenizer.json and a Vid2Seq checkpoint vid2seq.pth (docs/data.md). What is in OUT already
# (features.safetensors, datastore, pretrained) is not made again. For several GPUs write
# `torchrun --nproc-per-node N -m starc` for the `starc` of `starc train`.
# FIRST and RECIPE name the recipes of the two stages, SETTINGS holds more of `starc train`'s
# options for both, such as "--set train.precision=bfloat16".
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
rest="--validation $validation --tokenizer $data/tokenizer.json ${SETTINGS:-}"

# First stage, from pretrained Vid2Seq; second stage, ten epochs at 1e-5.
[ -e "$out/pretrained" ] || starc import "$data/vid2seq.pth" --out "$out/pretrained"
stage "$out/vid2seq" starc train "${FIRST:-vid2seq}" $files $rest --init "$out/pretrained"
stage "$out/starc" starc train "${RECIPE:-youcook2}" $files $rest --init "$out/vid2seq/best" \
    --datastore "$out/datastore"

starc evaluate "$out/starc/best" --annotations "$test" \
    --features "$out/features.safetensors" --speech "$speech" --out "$out/predictions.json" --overwrite
starc score "$out/predictions.json" "$test" --protocol paragraph
