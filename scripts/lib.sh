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

# A test that this machine cannot run. The summary counts these lines, so that what was not tested
# is never mistaken for what passed.
skip() {
    echo "skipped: $*"
}
