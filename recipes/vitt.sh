#!/bin/sh
# The paper on ViTT: the same road as YouCook2 with λ 2 and half the epochs in the first stage.
# sh recipes/vitt.sh DATA OUT
FIRST=vid2seq_vitt RECIPE=vitt exec sh "$(dirname "$0")/youcook2.sh" "$@"
