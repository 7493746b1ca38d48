#!/bin/sh
# A small model on your own annotations in minutes: sh recipes/tiny.sh DATA OUT
# DATA holds train.json, val.json, features.safetensors (384 wide), speech.json, tokenizer.json and
# datastore/. prepare_youcook2.py makes such a folder of YouCook2.
set -eu
data=$1 out=$2
. "$(dirname "$0")/stage.sh"
files="--annotations $data/train.json --features $data/features.safetensors --speech $data/speech.json"
starc data check $files --datastore "$data/datastore" --validation "$data/val.json" --recipe tiny
stage "$out" starc train tiny $files --validation "$data/val.json" \
    --tokenizer "$data/tokenizer.json" --datastore "$data/datastore"
starc evaluate "$out/best" --annotations "$data/val.json" \
    --features "$data/features.safetensors" --speech "$data/speech.json"
