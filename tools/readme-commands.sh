#!/usr/bin/env bash
# Runs the commands of the `sh` blocks of README.md, or of the page that is given, in their order, from the
# repository's root.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-README.md}
commands=$(awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$page")
[ -n "$commands" ] || { echo "$page has no sh blocks" >&2; exit 1; }
while IFS= read -r command <&3; do
    [ -n "$command" ] || continue
    printf '\n$ %s\n' "$command"
    bash -c "$command"
done 3<<<"$commands"
