"""Reads the instruction words ("TXN") of a job. Standard library only.

    decode_txn.py FILE              prints the operations, one a line
    decode_txn.py --emitted DIR     checks a folder that `cargo xtask aie emit` wrote: every file against the
                                    manifest, every job's words against what docs/npu.md says they must do,
                                    and that no changed word goes unnoticed

Written from the format and the document, not from the crate's code: the two are compared.
"""

import hashlib
import json
import os
import struct
import sys


class Refused(Exception):
    """Words that are no instructions."""


def decode(data):
    """The columns, the memory rows and the operations."""

    def words(at, n):
        if at + 4 * n > len(data):
            raise Refused(f"byte {at}: the words end")
        return struct.unpack_from(f"<{n}I", data, at)

    def zero(at, *values):
        if any(values):
            raise Refused(f"byte {at}: expected zeros")

    version, shape, count, size = words(0, 4)
    if version != 0x06040100:
        raise Refused(f"version {version:#x}")
    if size != len(data):
        raise Refused(f"{size} bytes said, {len(data)} found")
    at, operations = 16, []
    for _ in range(count):
        (code,) = words(at, 1)
        if code == 0:
            _, a, register, b, value, length = words(at, 6)
            zero(at, a, b, length - 24)
            operations.append(("write", register, value))
        elif code == 1:
            _, a, register, length = words(at, 4)
            zero(at, a, length % 4)
            if length < 20:
                raise Refused(f"byte {at}: a block of {length} bytes")
            operations.append(("block", register, *words(at + 16, length // 4 - 4)))
        elif code == 3:
            _, a, register, b, value, mask, length = words(at, 7)
            zero(at, a, b, length - 28)
            operations.append(("masked", register, value, mask))
        elif code == 0x80:
            _, length, tile, channel = words(at, 4)
            zero(at, length - 16, tile >> 24, channel & 0xFFFFFF ^ 0x010100)
            column, row, direction = tile >> 16, tile >> 8 & 0xFF, tile & 0xFF
            operations.append(("sync", column, row, direction, channel >> 24))
        elif code == 0x81:
            _, length, *gap, register, a, argument, b, offset, c = words(at, 12)
            zero(at, length - 48, *gap, a, b, c)
            operations.append(("patch", register, argument, offset))
        else:
            raise Refused(f"byte {at}: no such operation: {code:#x}")
        at += length
    if at != len(data):
        raise Refused(f"{len(data) - at} bytes behind the last operation")
    return shape & 0xFF, shape >> 8, operations


def expected(rows, k, weights_at):
    """What the words of a job have to do, from docs/npu.md."""
    strips, slices = -(-rows // 1024), -(-k // 512)
    weights = strips * slices * 4 * 2 * 2176
    results = strips * 4 * 8 * 32 * 4
    slice_bytes = slices * 9792
    linear = (0, 0, 0, 0xC0000000, 0x02000000, 0, 0x02000000)
    out = []

    def descriptor(column, number, n_bytes, argument, offset):
        register = column << 25 | 0x1D000 + 0x20 * number
        out.append(("block", register, n_bytes // 4, *linear))
        out.append(("patch", register + 4, argument, offset))

    for column in range(8):
        base = column << 25
        descriptor(column, 1, results, 2, column * results)
        out.append(("masked", base | 0x1D200, 0xF00, 0x1F00))
        out.append(("write", base | 0x1D204, 0x80000001))
        descriptor(column, 0, weights, 0, weights_at + column * weights)
        out.append(("write", base | 0x1D214, 0))
    groups = [repeats for repeats in (strips // 20, int(strips % 20 > 0)) if repeats]
    for i, repeats in enumerate(groups):
        descriptor(0, 2 + i, slice_bytes, 1, i * slice_bytes)
        out.append(("write", 0x1D21C, 2 + i | repeats - 1 << 16))
    out += [("sync", column, 0, 0, 0) for column in range(8)]
    return out


def check_emitted(folder):
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    listed = {entry["path"] for entry in manifest["files"]}
    found = {
        os.path.relpath(os.path.join(at, name), folder)
        for at, folders, names in os.walk(folder)
        for name in names
        if not os.path.relpath(at, folder).startswith("build")
    }
    assert found == listed | {"manifest.json"}, found ^ listed
    for entry in manifest["files"]:
        with open(os.path.join(folder, entry["path"]), "rb") as file:
            data = file.read()
        assert len(data) == entry["size_bytes"], entry
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry
    changed = 0
    for job in manifest["jobs"]:
        with open(os.path.join(folder, job["instructions"]), "rb") as file:
            data = file.read()
        wanted = (8, 1, expected(job["out_features"], job["in_features"], 0))
        assert decode(data) == wanted, f"{job['name']}: not what the job has to do"
        for at in range(0, len(data), 4):
            for bit in (0, 5, 16, 31):
                mutant = bytearray(data)
                mutant[at + bit // 8] ^= 1 << bit % 8
                try:
                    same = decode(bytes(mutant)) == wanted
                except Refused:
                    same = False
                assert not same, f"{job['name']}: bit {bit} of word {at // 4} means nothing"
                changed += 1
    print(f"{len(listed)} files, {len(manifest['jobs'])} jobs as documented, {changed} changed words found")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--emitted":
        check_emitted(arguments[1])
        return 0
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[0], "rb") as file:
        columns, memory_rows, operations = decode(file.read())
    print(f"columns {columns} memory_rows {memory_rows}")
    for name, *values in operations:
        hexadecimal = {"write": values, "block": values, "masked": values, "patch": values[:1]}
        n = len(hexadecimal.get(name, []))
        print(name, *(f"{v:#x}" for v in values[:n]), *values[n:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
