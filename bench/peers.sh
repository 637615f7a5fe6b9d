#!/usr/bin/env bash
# Sets up what Ludus is compared with, each peer in an environment of its own below FOLDER:
#   bench/peers.sh [FOLDER [PEER]]     default .peers, all of them; `ludus bench … --peers FOLDER` finds them there
# vLLM, TRL and verl want different versions of transformers. All versions are pinned, so pip has nothing to resolve.
# verl is there for its algorithms alone, beside which `make test-oracles` holds ours.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-.peers}
only=${2:-}
python=${PYTHON:-python3}
torch=torch==2.13.0

make_environment() {  # name, file of pinned packages, what brings its own dependencies
    test -z "$only" || test "$only" = "$1" || return 0
    local environment=$folder/$1
    local stamp=$environment/.ready
    if [ "$stamp" -nt "$here/peers/$2" ]; then
        echo "$1 is ready in $environment"
        return
    fi
    test -x "$environment/bin/python" || "$python" -m venv "$environment"
    # torch brings its own dependencies; where there is a choice, the build for the CPU is enough
    test -z "${3:-}" || "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$3"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/peers/$2"
    touch "$stamp"
    echo "$1 is set up in $environment"
}

make_environment vllm vllm.txt "$torch"
make_environment trl trl.txt "$torch"
make_environment verl verl.txt "$torch"
make_environment litellm litellm.txt
make_environment rllm rllm.txt
