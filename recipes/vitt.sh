#!/bin/sh
# The paper on ViTT: the same road as YouCook2 with λ 2. sh recipes/vitt.sh DATA OUT
RECIPE=vitt exec sh "$(dirname "$0")/youcook2.sh" "$@"
