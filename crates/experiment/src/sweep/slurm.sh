#!/bin/bash
#SBATCH --job-name=@NAME@
#SBATCH --array=1-@OF@
#SBATCH --cpus-per-task=1
#SBATCH --output=/dev/null
# A sweep of @CELLS@ cells in @OF@ shards, written by `tandem-sim sweep --slurm`.
#
#   bash THIS [SBATCH OPTION …]   submits the shards that are missing as one array, and a job that joins them once all are there
#   bash THIS status              says how many are there, and shows the logs of those that failed
#   bash THIS merge               joins them
#
# After a failure the first of these again submits what is missing; where the joined file is complete there is nothing to do. A shard that
# `merge` finds damaged is to be removed first. `sbatch THIS shard` submits all shards and joins nothing; a shard that is complete already
# ends at once. Every node needs program, scenario and folder under the names below (TANDEM=PATH is another program). The scenario must be
# what it was when this was written: its grid has the fingerprint below, and nothing else runs or is joined.
set -euo pipefail

script=@SCRIPT@
tandem=${TANDEM:-@PROGRAM@}
folder=@FOLDER@
out=@OUT@
of=@OF@
fingerprint=@FINGERPRINT@
arguments=(@ARGUMENTS@)

file() {
    printf '%s/%04d-of-%04d.parquet' "$folder" "$1" "$of"
}

missing() {
    local number
    for ((number = 1; number <= of; number++)); do
        [[ -e $(file "$number") ]] || echo "$number"
    done
}

# 1 2 3 7 8 9 as 1-3,7-9.
ranges() {
    awk 'function end() { if (last) printf "%s%s", comma, first == last ? first : first "-" last; comma = "," }
         NR == 1 || $1 != last + 1 { if (last) end(); first = $1 }
         { last = $1 }
         END { end() }'
}

# What is said goes to a log beside the shards, which is kept only if the job fails. Only for the commands that jobs of this script are
# given: in somebody's own job (salloc) the others say what they have to say where they are called.
log() {
    kept=$folder/$1.log
    exec >"$kept" 2>&1
    trap 'status=$?; if ((status == 0)); then rm -f "$kept"; fi; exit $status' EXIT
}

shard() {
    log "$1"
    "$tandem" sweep "${arguments[@]}" --expect "$fingerprint" --workers 1 --shard "$1/$of" --out "$(file "$1")"
}

merge() {
    local files=() number
    for ((number = 1; number <= of; number++)); do
        files+=("$(file "$number")")
    done
    "$tandem" sweep merge --expect "$fingerprint" "$out" "${files[@]}"
}

status() {
    local log
    echo "$((of - $(missing | wc -l))) of $of shards are there"
    if [[ -e $out ]]; then echo "$out is there"; fi
    for log in "$folder"/*.log; do
        if [[ -s $log ]]; then
            echo "$log:"
            tail -n 3 "$log"
        fi
    done
}

submit() {
    local numbers array join
    if [[ -e $out ]]; then
        # It is read, and nothing else is done: of something else, or damaged, it is an error.
        "$tandem" sweep "${arguments[@]}" --expect "$fingerprint" --out "$out"
        return
    fi
    mkdir -p "$folder"
    numbers=$(missing)
    if [[ -z $numbers ]]; then
        merge
        return
    fi
    array=$(sbatch --parsable "$@" --array="$(ranges <<<"$numbers")" "$script" shard)
    array=${array%%;*}
    join=$(sbatch --parsable "$@" --job-name=@NAME@-merge --output=/dev/null --dependency="afterok:$array" --kill-on-invalid-dep=yes \
        --wrap "exec bash $(printf %q "$script") merge-job")
    echo "$(wc -l <<<"$numbers") of $of shards are job $array; job ${join%%;*} joins them into $out"
}

# Said to whoever calls, and to a log for `status`: what a job says is lost.
refuse() {
    echo "$script: $*" | tee "$folder/refused.log" >&2
    exit 2
}

case ${1:-} in
    merge | status) "$1" ;;
    merge-job)
        log merge
        merge
        ;;
    shard)
        [[ -n ${SLURM_ARRAY_TASK_ID:-} ]] || refuse "shard is for tasks of an array: sbatch $script shard"
        shard "$SLURM_ARRAY_TASK_ID"
        ;;
    *)
        # Each task would submit everything.
        [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || refuse "this is a task of an array: call it outside, or sbatch $script shard"
        submit "$@"
        ;;
esac
