# Shared by the scripts: messages, and the cache that outlives the build folder.
# Sourced, not run.
# shellcheck shell=bash

# Things that are dear to fetch and do not depend on the tree, each under a hash of its inputs.
cache_dir() {
    echo "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tandem"
}

say() {
    echo "$*" >&2
}

# Copies the libraries that programs load at their start into a file system, where they are here. A static program has none.
add_libraries() {
    local root=$1 program file
    shift
    for program in "$@"; do
        while read -r file; do
            [[ -e $root$file ]] || install -D "$file" "$root$file"
        done < <(ldd "$program" 2>/dev/null | grep -o '/[^ ]*')
    done
}

# A test that this machine cannot run. The summary counts these lines, so that what was not tested
# is never mistaken for what passed.
skip() {
    echo "skipped: $*"
}
