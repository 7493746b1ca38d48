#!/bin/sh
# ActivityNet Captions: Vid2Seq with its authors' settings, then the paper's second stage with those
# of YouCook2. sh recipes/activitynet.sh DATA OUT
FIRST=vid2seq_activitynet RECIPE=activitynet exec sh "$(dirname "$0")/youcook2.sh" "$@"
