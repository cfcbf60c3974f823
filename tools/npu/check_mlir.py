"""Parses and verifies MLIR of our array, and writes it in generic form.

    check_mlir.py FILE [-o GENERIC]     one file; the generic form is for `mlir-opt`
    check_mlir.py --self-test FILE      breaks the text in known places: each break must be refused

Needs `requirements.txt`. Exit code 1 where the text is refused.
"""

import argparse
import io
import re
import sys

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from aie_dialect import DIALECTS

# A text of the design's module, what takes its place the first time it occurs, and a part of the refusal.
BREAKS = [
    ("aie.device(npu2)", "aie.device(npu1)", "expected device npu2"),
    ("= aie.tile(0, 0)", "= aie.tile(8, 0)", "there is no tile (8, 0)"),
    ("= aie.tile(0, 3)", "= aie.tile(0, 2)", "two for the same"),
    ("%weights_0_1 = aie.buffer(%tile_0_1)", "%weights_0_1 = aie.buffer(%tile_0_0)", "no memory"),
    ("{address = 4096 : i32", "{address = 4064 : i32", "lines of 64 bytes"),
    ("{address = 4096 : i32", "{address = 4032 : i32", "overlaps what lies before"),
    ("{address = 4096 : i32", "{address = 65472 : i32", "ends beyond the memory"),
    ("memref<5120xf32>", "memref<5136xf32>", "memref<5136xf32>"),
    ('sym_name = "lock_0_1_1"', 'sym_name = "lock_0_1_0"', "Redefinition of symbol"),
    ("aie.lock(%tile_0_2, 5)", "aie.lock(%tile_0_2, 16)", "no lock 16"),
    ("aie.lock(%tile_0_2, 5)", "aie.lock(%tile_0_2, 4)", "two for the same"),
    ("{init = 3 : i32", "{init = 64 : i32", "cannot hold 64"),
    ("aie.connect<South : 4, North : 4>", "aie.connect<South : 1, North : 4>", "has no way"),
    ("aie.connect<South : 4, North : 4>", "aie.connect<South : 4, North : 6>", "no North : 6 out"),
    ("aie.connect<South : 4, North : 4>", "aie.connect<South : 6, North : 4>", "no South : 6 in"),
    ("aie.connect<South : 4, North : 4>", "aie.connect<East : 4, North : 4>", "no East : 4 in"),
    ("aie.connect<South : 4, North : 4>", "aie.connect<South : 0, North : 0>", "two wires drive"),
    ("aie.connect<DMA : 1, North : 7>", "aie.connect<DMA : 1, North : 6>", "multiplexer"),
    ("aie.shim_mux(%tile_0_0)", "aie.shim_mux(%tile_0_1)", "only a shim"),
    ("aie.memtile_dma(%tile_0_1)", "aie.memtile_dma(%tile_0_2)", "another tile"),
    ("aie.mem(%tile_0_2)", "aie.mem(%tile_0_3)", "another tile"),
    ("aie.dma_start(S2MM, 1,", "aie.dma_start(S2MM, 6,", "no channel 6"),
    ("aie.dma_start(S2MM, 1,", "aie.dma_start(S2MM, 0,", "started twice"),
    ("aie.dma_start(S2MM, 1,", "aie.dma_start(S2SS, 1,", "no direction"),
    ("aie.dma_start(S2MM, 1, ^bd", "aie.dma_start(S2MM, 1, ^nowhere", "missing block"),
    ("len = 1088) {bd_id = 0", "len = 0) {bd_id = 0", "a transfer of 0 words"),
    ("len = 1088) {bd_id = 0", "len = 131072) {bd_id = 0", "a transfer of 131072 words"),
    ("len = 1088) {bd_id = 0", "len = 13057) {bd_id = 0", "leaves its buffer"),
    ("{bd_id = 0 : i32}", "{bd_id = 48 : i32}", "no descriptor 48"),
    ("{bd_id = 0 : i32}", "{bd_id = 47 : i32}", "other channels' half"),
    ("{bd_id = 0 : i32}", "{bd_id = 1 : i32}", "two descriptors of one number"),
    ("aie.next_bd ^bd0\n", "aie.next_bd ^bd1\n", "does not come back"),
    ("aie.next_bd ^bd0\n", "aie.next_bd ^end\n", "ends with aie.next_bd"),
    ("aie.use_lock(%lock_0_1_0, A", "aie.use_lock(%lock_1_1_0, A", "a lock of another tile"),
    ("aie.use_lock(%lock_0_1_0, A", "aie.use_lock(%weights_0_1, A", "index"),
    ("AcquireGreaterEqual", "Release", "the first lock is to be acquired"),
    ("AcquireGreaterEqual", "Acquire", "no action Acquire"),
    ("%c1 = arith.constant 1 : i32", "%c1 = arith.constant 64 : i32", "1 to 63"),
    ("aie.dma_bd(%slices_0_2 :", "aie.dma_bd(%slices_1_2 :", "a buffer of another tile"),
    ("aie.dma_bd(%slices_0_2 : memref<4896xi32>", "aie.dma_bd(%slices_0_2 : memref<8xi32>", "memref"),
    ("aie.core(%tile_0_2)", "aie.core(%tile_0_1)", "a lock of another tile"),
    ("func.call @ternary_matmul(", "func.call @matmul(", "@matmul"),
    ("func.call @ternary_matmul(%slices_0_2,", "func.call @ternary_matmul(%acc_0_2,", "memref"),
    ("@ternary_matmul(memref<4896xi32>, i32,", "@ternary_matmul(memref<4896xi32>, f32,", "f32"),
    ("cf.br ^i3(", "cf.br ^i99(", "missing block"),
    ("cf.br ^i3(%c0,", "cf.br ^i3(%slices_0_2,", "i32"),
    ("arith.cmpi ult,", "arith.cmpi below,", "below"),
    ("aie.runtime_sequence @job(", "aie.runtime_sequence @slices_0_2(", "Redefinition of symbol"),
    ("arg_idx = 2 : i32", "arg_idx = 3 : i32", "there is no argument 3"),
    ("{addr = ", "{addr = 1", "no descriptor has its address"),
    ("memref.get_global @block_0 :", "memref.get_global @block_9 :", "block_9"),
    ("dense<[", "dense<[7, ", "9 values"),
    ("aiex.npu.sync(%", "aiex.npu.sync(%nothing, %", "nothing"),
    ("%o3_1) : i32, i32", "%o3_1) : i32", "2 operands, 1 types"),
    ("aiex.npu.write32(", "aiex.npu.write64(", "write64"),
]


def read(text, name):
    """The module, verified."""
    context = Context()
    context.load_dialect(Builtin)
    for dialect in DIALECTS:
        context.load_dialect(dialect)
    module = Parser(context, text, name).parse_module()
    module.verify()
    return module


def refusal(text, name):
    """Why a text is refused, or nothing."""
    try:
        read(text, name)
    except (ParseError, VerifyException) as error:
        return str(error)
    return None




def generic(module):
    """The generic form. `mlir-opt` does not know our dialects, so it cannot tell that a device is a table of
    symbols: what looks a symbol up gets a name that it does not know either. The look-ups are checked here.
    """
    out = io.StringIO()
    Printer(out, print_generic_format=True).print_op(module)
    text = out.getvalue() + "\n"
    for name in ("func.call", "memref.get_global"):
        text = text.replace(f'"{name}"(', f'"aie.{name}"(')
    return text


def two_by_four(text):
    """The text without the tiles of columns 2 to 7 and of two rows, which are as the others: less to read for
    each break.
    """
    kept, keep = [], True
    for line in text.splitlines(keepends=True):
        # What stands directly in the device begins at this depth.
        if line.startswith("    ") and line[4] not in " }^":
            name = re.match(r"    %[a-z_]+_(\d)_(\d)", line)
            keep = name is None or int(name[1]) < 2 and int(name[2]) < 4
        if keep or not line.startswith("    "):
            kept.append(line)
    return "".join(kept)


def self_test(text, name):
    text = two_by_four(text)
    assert refusal(text, name) is None, refusal(text, name)
    survivors = []
    broken = 0
    for old, new, reason in BREAKS:
        assert old in text, f"the module has no `{old}`"
        found = refusal(text.replace(old, new, 1), name)
        broken += 1
        if found is None or reason not in found:
            survivors.append((old, new, reason, found and found[-400:]))
    for survivor in survivors:
        print("not refused for the reason:", *survivor, sep="\n  ", file=sys.stderr)
    print(f"{name}: {broken - len(survivors)} of {broken} broken texts refused for their reason")
    return 1 if survivors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("-o", "--output", help="where the generic form goes")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        text = file.read()
    try:
        module = read(text, arguments.file)
    except (ParseError, VerifyException) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 1
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(generic(module))
    operations = sum(1 for _ in module.walk())
    print(f"{arguments.file}: {operations} operations parsed and verified")
    return self_test(text, arguments.file) if arguments.self_test else 0


if __name__ == "__main__":
    sys.exit(main())
