#!/bin/sh
# The paper on ViTT: the same steps as for YouCook2 with λ 2 and half the epochs in the first stage, chosen
# by dev.json, scored on test.json, each annotator apart. DATA holds train.json, dev.json and
# test.json as VidChapters prepares them, or as `starc data convert` makes them of ViTT's own file.
# sh recipes/vitt.sh DATA OUT
FIRST=vid2seq_vitt RECIPE=vitt VALIDATION=dev.json TEST=test.json \
    exec sh "$(dirname "$0")/youcook2.sh" "$@"
