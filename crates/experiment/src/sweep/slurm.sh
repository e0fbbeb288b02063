#!/bin/bash
#SBATCH --job-name=@NAME@
#SBATCH --array=1-@OF@
#SBATCH --cpus-per-task=1
#SBATCH --output=/dev/null
# A sweep of @CELLS@ cells in @OF@ shards, written by `tandem sim sweep --slurm`.
#
#   bash THIS [SBATCH OPTION …]   submits the shards that are missing as one array, and a job that joins them once all are there
#   bash THIS status              says how many are there, and shows the logs of those that failed
#   bash THIS merge               joins them
#
# After a failure the first of these again submits what is missing. `sbatch THIS` submits all shards and joins nothing; a shard that is
# complete already ends at once. Every node needs program, scenario and folder under the names below (TANDEM=PATH is another program).
set -euo pipefail

script=@SCRIPT@
tandem=${TANDEM:-@PROGRAM@}
folder=@FOLDER@
out=@OUT@
of=@OF@
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
         $1 != last + 1 { if (last) end(); first = $1 }
         { last = $1 }
         END { end() }'
}

# In a job, what is said goes to a log beside the shards, which is kept only if the job fails.
log() {
    [[ -n ${SLURM_JOB_ID:-} ]] || return 0
    kept=$folder/$1.log
    exec >"$kept" 2>&1
    trap 'status=$?; if ((status == 0)); then rm -f "$kept"; fi; exit $status' EXIT
}

shard() {
    log "$1"
    "$tandem" sim sweep "${arguments[@]}" --workers 1 --shard "$1/$of" --out "$(file "$1")"
}

merge() {
    local files=() number
    log merge
    for ((number = 1; number <= of; number++)); do
        files+=("$(file "$number")")
    done
    "$tandem" sim sweep merge "$out" "${files[@]}"
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
    numbers=$(missing)
    if [[ -z $numbers ]]; then
        merge
        return
    fi
    array=$(sbatch --parsable "$@" --array="$(ranges <<<"$numbers")" "$script")
    array=${array%%;*}
    join=$(sbatch --parsable "$@" --job-name=@NAME@-merge --output=/dev/null --dependency="afterok:$array" --kill-on-invalid-dep=yes \
        --wrap "exec bash $(printf %q "$script") merge")
    echo "$(wc -l <<<"$numbers") of $of shards are job $array; job ${join%%;*} joins them into $out"
}

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    shard "$SLURM_ARRAY_TASK_ID"
else
    case ${1:-} in
        merge | status) "$1" ;;
        *) submit "$@" ;;
    esac
fi
