#!/bin/sh
# The tables of docs/benchmarks.md: sh recipes/yc2_small.sh DATA OUT
# YouCook2 with what is real at hand (DATA as in docs/data.md) and a small T5 from scratch. The first
# stage is that of small_youcook2.sh, which is run first; then every row goes through the same second
# stage. Some four hours on two cores in all.
set -eu
data=$1 out=$2
here=$(dirname "$0")
[ -e "$out/tiny-youcook2.done" ] || sh "$here/small_youcook2.sh" "$data" "$out"

python "$here/baselines.py" "$out/data" "$out/baselines"
for name in random speech nearest; do
    echo "== $name"
    starc score "$out/baselines/$name.json" "$out/data/validation.json"
done

# Two rows at a time with a thread each are faster than one after the other with two.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
for name in components clustering; do
    starc ablate $name tiny_youcook2 --run "$out/$name" --annotations "$out/data/timed.json" \
        --features "$out/data/evidence.safetensors" --speech "$out/data/speech.json" \
        --tokenizer "$out/data/tokenizer.json" --datastore "$out/data/datastore" \
        --validation "$out/data/validation.json" --init "$out/second" \
        --seeds "${SEEDS:-2}" --jobs "${JOBS:-2}" ${SETTINGS:-}
    cat "$out/$name/table.md"
done
