#!/usr/bin/env bash
# The whole chain, in order: tools/pair/run.sh DIR [--smoke]
# Every step that was interrupted goes on where it was; PYTHON chooses the interpreter.
set -euo pipefail
work=${1:?usage: run.sh DIR [--smoke]}
python=${PYTHON:-python3}
cd "$(dirname "$0")"
smoke=() target=(--steps 2400) generate=() drafter=(--steps 3000) evaluate=() golden=()
if [ "${2:-}" = --smoke ]; then
    smoke=(--smoke) target=(--steps 10) generate=(--sequences 48) drafter=(--steps 10)
    evaluate=(--prompts 12) golden=(--per-class 2 --tokens 16)
fi
mkdir -p "$work"
step() {
    printf '\n== %s (%s)\n' "$*" "$(date +%H:%M:%S)"
    "$python" "$@" --work "$work"
}
"$python" test_target.py
[ -e "$work/corpus.json" ] || step prepare.py "${smoke[@]}"
step train_target.py "${target[@]}"
step export_target.py
step generate.py "${generate[@]}"
step train_drafter.py "${drafter[@]}"
step export_drafter.py
step check_files.py
step evaluate.py "${evaluate[@]}"
step golden.py "${golden[@]}"
step check_engines.py
step package.py
