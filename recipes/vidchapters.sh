#!/bin/sh
# Chapters with Vid2Seq as VidChapters trains it: sh recipes/vidchapters.sh DATA OUT
# DATA holds narrated/ (features/ and speech.json of videos without annotations, for pretraining),
# train.json, val.json, test.json, features/ (a .npy per video), speech.json and t5-base's
# tokenizer.json; INIT names a model folder of that T5. SETTINGS as in youcook2.sh.
set -eu
data=$1 out=$2
. "$(dirname "$0")/stage.sh"
more="--tokenizer $data/tokenizer.json ${SETTINGS:-}"
files="--features $data/features --speech $data/speech.json"

stage "$out/pretrained" starc train pretrain --features "$data/narrated/features" \
    --speech "$data/narrated/speech.json" ${INIT:+--init "$INIT"} $more
stage "$out/chapters" starc train vidchapters --annotations "$data/train.json" $files $more \
    --validation "$data/val.json" --init "$out/pretrained/best"
starc evaluate "$out/chapters/best" --annotations "$data/test.json" $files --protocol chapters \
    --out "$out/predictions.json" --overwrite
starc evaluate "$out/chapters/best" --annotations "$data/test.json" $files --protocol titles
