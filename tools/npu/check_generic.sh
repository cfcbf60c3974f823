#!/usr/bin/env bash
# The generic form that check_mlir.py wrote, by mlir-opt: values, types and blocks. Broken, it is refused.
set -euo pipefail
check() { mlir-opt-22 --allow-unregistered-dialect "$1" -o /dev/null; }
check "$1"
broken=$(mktemp)
trap 'rm -f "$broken"' EXIT
for change in 's/"arith.addi"(\(%[^,]*\),.*/"arith.addi"(\1, %nowhere) : (i32, i32) -> i32/' \
    '0,/"arith.index_cast"(\(.*\)(i32) -> index/s//"arith.index_cast"(\1(i32) -> i32/' \
    '0,/"cf.br"(%[^)]*)/s//"cf.br"()/' \
    '0,/\[\^bd0/s//[^nowhere/' \
    '0,/function_type = /s//function_kind = /' \
    '0,/dense<\[/s//dense<[7, /'; do
    sed "$change" "$1" >"$broken"
    if cmp -s "$1" "$broken"; then
        echo "a break that changes nothing: $change" >&2
        exit 1
    fi
    if check "$broken" 2>/dev/null; then
        echo "not refused: $change" >&2
        exit 1
    fi
done
echo "$1: as it should be for mlir-opt, six broken forms refused"
