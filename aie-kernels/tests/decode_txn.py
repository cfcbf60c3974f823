"""Prints the operations of a file of TXN words, one a line. Standard library only.

Written from the format, not from the crate's decoder: the two are compared by a test.
"""

import struct
import sys


def main(path):
    with open(path, "rb") as file:
        data = file.read()
    version, shape, count, size = struct.unpack_from("<4I", data)
    assert version == 0x06040100, hex(version)
    assert size == len(data), (size, len(data))
    print(f"columns {shape & 0xFF} memory_rows {shape >> 8}")
    at = 16
    for _ in range(count):
        code = data[at]
        if code == 0:
            register, _, value, length = struct.unpack_from("<4I", data, at + 8)
            print(f"write {register:#x} {value:#x}")
        elif code == 1:
            register, length = struct.unpack_from("<2I", data, at + 8)
            words = struct.unpack_from(f"<{(length - 16) // 4}I", data, at + 16)
            print(f"block {register:#x}", *(f"{word:#x}" for word in words))
        elif code == 3:
            register, _, value, mask, length = struct.unpack_from("<5I", data, at + 8)
            print(f"masked {register:#x} {value:#x} {mask:#x}")
        elif code == 0x80:
            length, tile, channel = struct.unpack_from("<3I", data, at + 4)
            direction, row, column = tile & 0xFF, tile >> 8 & 0xFF, tile >> 16 & 0xFF
            assert channel & 0xFFFFFF == 0x010100, hex(channel)
            print(f"sync {column} {row} {direction} {channel >> 24}")
        elif code == 0x81:
            (length,) = struct.unpack_from("<I", data, at + 4)
            register, _, argument, _, offset = struct.unpack_from("<5I", data, at + 24)
            print(f"patch {register:#x} {argument} {offset}")
        else:
            raise SystemExit(f"byte {at}: no such operation: {code:#x}")
        at += length
    assert at == len(data), (at, len(data))


main(sys.argv[1])
