# Sourced by the recipes. `stage RUN starc train …` trains into the folder RUN, goes on where a killed
# one stopped, and does nothing once it is done. `once WHAT command …` makes a file or folder, again
# if it was killed on the way.
stage() {
    run=$1
    shift
    [ -e "$run/done" ] && return
    if [ -e "$run/recipe.json" ]; then set -- "$@" --resume; fi
    "$@" --out "$run"
    touch "$run/done"
}

once() {
    made=$1
    shift
    [ -e "$made.done" ] && return
    "$@"
    touch "$made.done"
}
