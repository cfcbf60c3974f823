#!/usr/bin/env bash
# Runs the commands of README.md's `sh` blocks, in their order, from the repository's root.
set -euo pipefail
cd "$(dirname "$0")/.."
commands=$(awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' README.md)
[ -n "$commands" ] || { echo "README.md has no sh blocks" >&2; exit 1; }
while IFS= read -r command <&3; do
    [ -n "$command" ] || continue
    printf '\n$ %s\n' "$command"
    bash -c "$command"
done 3<<<"$commands"
