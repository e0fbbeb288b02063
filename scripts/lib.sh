# Shared by the scripts: messages, and the cache that outlives the build folder.
# Sourced, not run.
# shellcheck shell=bash

# The folder for slow downloads and builds that several checkouts share, each under a hash of its inputs.
cache_dir() {
    echo "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tandem"
}

say() {
    echo "$*" >&2
}

# Copies the shared libraries of programs into a root file system, at the paths that they have here.
add_libraries() {
    local root=$1 program file
    shift
    for program in "$@"; do
        while read -r file; do
            [[ -e $root$file ]] || install -D "$file" "$root$file"
        done < <(ldd "$program" 2>/dev/null | grep -o '/[^ ]*')
    done
}

# Prints the path of the newer build of a program, debug or release; fails if there is none.
newer_program() {
    local target=${CARGO_TARGET_DIR:-target} found='' file
    for file in "$target"/{debug,release}/"$1"; do
        if [[ -x $file && (-z $found || $file -nt $found) ]]; then
            found=$file
        fi
    done
    [[ -n $found ]] && realpath "$found"
}

# Reports a test that this machine cannot run. scripts/test-summary counts these lines as skipped, not as passed.
skip() {
    echo "skipped: $*"
}
