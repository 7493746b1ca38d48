#!/bin/sh
# A full-size STaRC whose decoder is a Llama-family language model, on a GPU machine:
# sh recipes/llama.sh DATA OUT LLAMA
# DATA as in youcook2.sh, without checkpoint and tokenizer; LLAMA is a hub id, a folder of the hub's
# layout or a GGUF file. The language model stays as it is but for low-rank changes; captions that are
# retrieved are read as words.
INIT="llama:$3" exec env SECOND="--set model.retrieval.form=text" SETTINGS="--set model.llama.lora=32
    --set train.learning_rate=2e-4 --set train.precision=bfloat16 ${SETTINGS:-}" \
    sh "$(dirname "$0")/youcook2.sh" "$1" "$2"
