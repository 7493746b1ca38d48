# Sourced by the recipes: `stage RUN starc train …` trains into the folder RUN, goes on where a killed
# one stopped, and does nothing once it is done.
stage() {
    run=$1
    shift
    [ -e "$run/done" ] && return
    if [ -e "$run/recipe.json" ]; then set -- "$@" --resume; fi
    "$@" --out "$run"
    touch "$run/done"
}
