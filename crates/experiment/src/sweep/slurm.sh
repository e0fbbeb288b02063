#!/bin/bash
#SBATCH --job-name=@NAME@
#SBATCH --array=1-@OF@
#SBATCH --cpus-per-task=1
#SBATCH --output=/dev/null
# A sweep of @CELLS@ cells in @OF@ shards, written by `tandem-sim sweep --slurm`.
#
#   bash THIS [SBATCH OPTION …]   submits the missing shards as one array, and a job that joins them when all are complete
#   bash THIS status              prints the number of complete shards, and the logs of failed jobs
#   bash THIS merge               joins the shards
#
# After a failure, the first command submits the missing shards again; if the joined file is complete, it only checks that file.
# Remove a shard that `merge` reports as damaged. `sbatch THIS shard` submits all shards without a merge; complete shards end at once.
# Every node needs the program, the scenario and the folder at the paths below (TANDEM=PATH selects another program).
# The scenario must be unchanged: its grid has the fingerprint below, and every command rejects another grid.
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

# Prints 1 2 3 7 8 9 as 1-3,7-9.
ranges() {
    awk 'function end() { if (last) printf "%s%s", comma, first == last ? first : first "-" last; comma = "," }
         NR == 1 || $1 != last + 1 { if (last) end(); first = $1 }
         { last = $1 }
         END { end() }'
}

# Redirects output to a log next to the shards, which is kept only if the job fails. Only the commands of this script's jobs use it:
# the others may run in a user's own job (salloc) and must print to its terminal.
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
        # Only reads the file; a file of another grid or a damaged file is an error.
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

# Prints to stderr, and to a log for `status` because the output of a job is lost.
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
        # Otherwise each task would submit all shards.
        [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || refuse "this is a task of an array: call it outside, or sbatch $script shard"
        submit "$@"
        ;;
esac
