#!/bin/sh
# The embedded model, from raw files to the folder in the package: sh recipes/tiny_youcook2.sh DATA OUT
# DATA holds yc2/, asr/, features/ and frames/ (docs/data.md). About two hours on two cores.
set -eu
data=$1 out=$2
here=$(dirname "$0")
mkdir -p "$out"

# Annotations, timed speech, tokenizer, joint space, datastores, features.
[ -e "$out/data/simulated.safetensors" ] || python "$here/prepare_youcook2.py" "$data" "$out/data"

files="--features $out/data/speech.safetensors --speech $out/data/speech.json --tokenizer $out/data/tokenizer.json"
held="--validation $out/data/choose.json"
common="--set train.relative_rate=true"
plain="--set model.windows=none --set model.saliency=none --set model.retrieval=none --set model.prompt=none"

# MiniLM's token embeddings and heads that copy; practice on short extracts of the speech; Vid2Seq;
# STaRC, first with a heavy saliency loss, then with a light one.
[ -e "$out/first" ] || python "$here/first_weights.py" tiny_youcook2 "$out/data" "$out/first" $plain
[ -e "$out/practice" ] || starc train tiny_youcook2 --annotations "$out/data/extracts.json" $files \
    --run "$out/practice" --init "$out/first" $plain $common \
    --set model.window=30 --set train.epochs=1 --set train.learning_rate=2e-2
[ -e "$out/vid2seq" ] || starc train tiny_youcook2 --annotations "$out/data/train.json" $files $held \
    --run "$out/vid2seq" --init "$out/practice/last" $plain $common \
    --set train.batch=8 --set train.epochs=3 --set train.validate_every=3 --set train.learning_rate=1.2e-2
[ -e "$out/starc" ] || starc train tiny_youcook2 --annotations "$out/data/train.json" $files $held \
    --run "$out/starc" --init "$out/vid2seq/last" --datastore "$out/data/datastore" $common \
    --set train.batch=8 --set train.epochs=1 --set train.learning_rate=6e-3 \
    --set model.loss.saliency_weight=2
[ -e "$out/starc2" ] || starc train tiny_youcook2 --annotations "$out/data/train.json" $files $held \
    --run "$out/starc2" --init "$out/starc/last" --datastore "$out/data/datastore" $common \
    --set train.batch=8 --set train.epochs=1 --set train.learning_rate=6e-3 --set train.warmup=0.04

python "$here/ship.py" "$out/starc2/last" "$out/data" "$out/tiny-youcook2"

# Scores: settings were chosen on choose.json, the first 100 videos.
for set in report validation; do
    echo "== $set, speech only"
    starc evaluate "$out/tiny-youcook2" --annotations "$out/data/$set.json" $files --grammar
done
