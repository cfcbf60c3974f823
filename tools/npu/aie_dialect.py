"""The part of mlir-aie's `aie` and `aiex` dialects that our array uses, for xDSL.

Custom syntax is that of mlir-aie 1.4. Each operation checks itself; `Device` checks what only shows over all
of them. Limits are those of an NPU with AIE2P (device `npu2`), written down here a second time, on purpose:
`aie-kernels/src/verifier.rs` and this file are held against each other by what one writes and the other reads.
"""

from xdsl.dialects import arith, cf, func, memref
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntElementsAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    UnitAttr,
    i32,
)
from xdsl.ir import Block, Dialect
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    successor_def,
    traits_def,
)
from xdsl.traits import HasParent, IsTerminator, NoTerminator, SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

COLUMNS, ROWS = 8, 6
CORE, MEMORY, SHIM = "core", "memory tile", "shim"
MEMORY_BYTES = {CORE: 65536, MEMORY: 524288}
LOCKS = {CORE: 16, MEMORY: 64, SHIM: 16}
DESCRIPTORS = {CORE: 16, MEMORY: 48, SHIM: 16}
CHANNELS = {CORE: 2, MEMORY: 6, SHIM: 2}
LENGTH_BITS = {CORE: 14, MEMORY: 17}
# Ports of a stream switch into it and out of it.
PORTS_IN = {
    CORE: {"DMA": 2, "North": 4, "South": 6, "East": 4, "West": 4},
    MEMORY: {"DMA": 6, "North": 4, "South": 6},
    SHIM: {"North": 4, "South": 8, "East": 4, "West": 4},
}
PORTS_OUT = {
    CORE: {"DMA": 2, "North": 6, "South": 4, "East": 4, "West": 4},
    MEMORY: {"DMA": 6, "North": 6, "South": 4},
    SHIM: {"North": 6, "South": 6, "East": 4, "West": 4},
}
# Channels of a shim's DMA by the port of its switch's south.
MUX = {("DMA", 0, "North", 3), ("DMA", 1, "North", 7), ("North", 2, "DMA", 0), ("North", 3, "DMA", 1)}
LOCK_MAX, ARGUMENTS, WORD = 63, 5, 4


def require(condition, message):
    if not condition:
        raise VerifyException(message)


def number(attribute):
    return attribute.value.data


def parse_number(parser):
    return IntegerAttr(parser.parse_integer(allow_boolean=False), i32)


def parse_result(parser, type):
    parser.parse_punctuation(":")
    found = parser.parse_type()
    if found != type:
        parser.raise_error(f"expected {type}, found {found}")


def constant(value):
    """The number of an `arith.constant`."""
    owner = value.owner
    require(isinstance(owner, arith.ConstantOp), "expected the result of an arith.constant")
    require(isinstance(owner.value, IntegerAttr), "expected an integer")
    return number(owner.value)


def tile_of(value):
    require(isinstance(value.owner, Tile), "expected the result of an aie.tile")
    return value.owner


def enclosing_tile(op):
    """The tile whose core or DMA an operation is part of."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, (Core, Dma)):
        parent = parent.parent_op()
    require(parent is not None, f"{op.name} belongs in a core or a DMA")
    return tile_of(parent.tile)


def parse_body(parser, of, terminated):
    """`(%tile) {...} attributes`; an end where the syntax leaves it out."""
    parser.parse_punctuation("(")
    tile = parser.parse_operand()
    parser.parse_punctuation(")")
    region = parser.parse_region()
    attributes = parser.parse_optional_attr_dict()
    if not terminated:
        if not region.blocks:
            region.add_block(Block())
        region.block.add_op(End())
    return of(operands=[tile], result_types=[IndexType()], attributes=attributes, regions=[region])


@irdl_op_definition
class End(IRDLOperation):
    name = "aie.end"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


@irdl_op_definition
class Device(IRDLOperation):
    name = "aie.device"
    device = attr_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), SymbolTable())

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        device = StringAttr(parser.parse_identifier())
        parser.parse_punctuation(")")
        return cls(attributes={"device": device}, regions=[parser.parse_region()])

    def all(self, kind):
        return [op for op in self.body.block.ops if isinstance(op, kind)]

    def verify_(self):
        require(self.device.data == "npu2", f"expected device npu2, found {self.device.data}")
        once = {}
        for op in self.body.block.ops:
            if isinstance(op, Tile):
                key = ("tile", op.col, op.row)
            elif isinstance(op, Lock):
                key = ("lock", op.tile, number(op.id))
            elif isinstance(op, (Core, Dma, Switchbox, ShimMux)):
                key = (op.name, op.tile)
            else:
                continue
            require(key not in once, f"{op.name}: there are two for the same")
            once[key] = op
        self.verify_buffers()
        for core in self.all(Core):
            require((Mem.name, core.tile) in once, "a core whose DMA does nothing")

    def verify_buffers(self):
        stacks = {core.tile: number(core.stack_size) for core in self.all(Core)}
        end = {}
        for buffer in sorted(self.all(Buffer), key=lambda b: number(b.address)):
            at = number(buffer.address)
            taken = end.get(buffer.tile, stacks.get(buffer.tile, 0))
            require(at >= taken, f"buffer {buffer.sym_name.data} overlaps what lies before it")
            end[buffer.tile] = at + buffer.bytes()


@irdl_op_definition
class Tile(IRDLOperation):
    name = "aie.tile"
    col = attr_def(IntegerAttr)
    row = attr_def(IntegerAttr)
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        col = parse_number(parser)
        parser.parse_punctuation(",")
        row = parse_number(parser)
        parser.parse_punctuation(")")
        return cls(result_types=[IndexType()], attributes={"col": col, "row": row})

    @property
    def kind(self):
        return {0: SHIM, 1: MEMORY}.get(number(self.row), CORE)

    def verify_(self):
        inside = 0 <= number(self.col) < COLUMNS and 0 <= number(self.row) < ROWS
        require(inside, f"there is no tile ({number(self.col)}, {number(self.row)})")


@irdl_op_definition
class Buffer(IRDLOperation):
    name = "aie.buffer"
    tile = operand_def(IndexType())
    address = attr_def(IntegerAttr)
    sym_name = attr_def(StringAttr)
    result = result_def(MemRefType)
    traits = traits_def(HasParent(Device), SymbolOpInterface())
    assembly_format = "`(` $tile `)` attr-dict `:` type($result)"

    def bytes(self):
        return WORD * self.result.type.get_shape()[0]

    def verify_(self):
        kind = tile_of(self.tile).kind
        require(kind != SHIM, "a shim has no memory")
        type, at = self.result.type, number(self.address)
        require(type.get_num_dims() == 1 and type.get_shape()[0] > 0, "expected one known dimension")
        require(type.element_type.bitwidth == 8 * WORD, "expected elements of 32 bits")
        require(at >= 0 and at % 64 == 0 and self.bytes() % 64 == 0, "not whole lines of 64 bytes")
        require(at + self.bytes() <= MEMORY_BYTES[kind], f"it ends beyond the memory of a {kind}")


@irdl_op_definition
class Lock(IRDLOperation):
    name = "aie.lock"
    tile = operand_def(IndexType())
    id = attr_def(IntegerAttr)
    init = attr_def(IntegerAttr)
    sym_name = attr_def(StringAttr)
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device), SymbolOpInterface())

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        tile = parser.parse_operand()
        parser.parse_punctuation(",")
        id = parse_number(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[tile], result_types=[IndexType()], attributes={"id": id, **attributes})

    def verify_(self):
        kind = tile_of(self.tile).kind
        require(0 <= number(self.id) < LOCKS[kind], f"a {kind} has no lock {number(self.id)}")
        require(0 <= number(self.init) <= LOCK_MAX, f"a lock cannot hold {number(self.init)}")


@irdl_op_definition
class Connect(IRDLOperation):
    name = "aie.connect"
    source = attr_def(StringAttr)
    source_channel = attr_def(IntegerAttr)
    dest = attr_def(StringAttr)
    dest_channel = attr_def(IntegerAttr)

    @classmethod
    def parse(cls, parser):
        attributes = {}
        for end, mark in (("source", "<"), ("dest", ",")):
            parser.parse_punctuation(mark)
            attributes[end] = StringAttr(parser.parse_identifier())
            parser.parse_punctuation(":")
            attributes[f"{end}_channel"] = parse_number(parser)
        parser.parse_punctuation(">")
        return cls(attributes=attributes)

    def ends(self):
        return (
            self.source.data,
            number(self.source_channel),
            self.dest.data,
            number(self.dest_channel),
        )

    def verify_(self):
        parent = self.parent_op()
        if isinstance(parent, ShimMux):
            require(self.ends() in MUX, f"the multiplexer of a shim has no way {self.ends()}")
            return
        require(isinstance(parent, Switchbox), "a connection belongs in a switchbox or a shim_mux")
        kind = tile_of(parent.tile).kind
        source, i, dest, o = self.ends()
        require(0 <= i < PORTS_IN[kind].get(source, 0), f"a {kind} has no {source} : {i} in")
        require(0 <= o < PORTS_OUT[kind].get(dest, 0), f"a {kind} has no {dest} : {o} out")
        vertical = kind == MEMORY and {source, dest} <= {"North", "South"}
        require(i == o or not (vertical or source == dest), f"a {kind} has no way {self.ends()}")


class Wires(IRDLOperation):
    """What holds connections."""

    def verify_(self):
        driven = set()
        for op in self.connections.block.ops:
            if isinstance(op, End):
                continue
            require(isinstance(op, Connect), f"expected connections, found {op.name}")
            port = op.ends()[2:]
            require(port not in driven, f"two wires drive {port}")
            driven.add(port)


@irdl_op_definition
class Switchbox(Wires):
    name = "aie.switchbox"
    tile = operand_def(IndexType())
    connections = region_def("single_block")
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        return parse_body(parser, cls, terminated=False)


@irdl_op_definition
class ShimMux(Wires):
    name = "aie.shim_mux"
    tile = operand_def(IndexType())
    connections = region_def("single_block")
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        return parse_body(parser, cls, terminated=False)

    def verify_(self):
        require(tile_of(self.tile).kind == SHIM, "only a shim has a multiplexer")
        super().verify_()


@irdl_op_definition
class Core(IRDLOperation):
    name = "aie.core"
    tile = operand_def(IndexType())
    stack_size = attr_def(IntegerAttr)
    body = region_def()
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        return parse_body(parser, cls, terminated=True)

    def verify_(self):
        require(tile_of(self.tile).kind == CORE, "a program runs on a core")
        ends = [block for block in self.body.blocks if isinstance(block.last_op, End)]
        require(len(ends) == 1, "expected one aie.end")


class Dma(IRDLOperation):
    """The DMA of a tile: a chain of starts, and rings of descriptors."""

    def verify_(self):
        kind = tile_of(self.tile).kind
        expected = CORE if self.name == "aie.mem" else MEMORY
        require(kind == expected, f"{self.name} is not for a {kind}")
        channels, owner, ids = set(), {}, set()
        block = self.body.blocks[0]
        while not isinstance(block.last_op, End):
            start = block.last_op
            require(isinstance(start, DmaStart), "a chain of starts is broken")
            channel = (start.direction.data, number(start.channel))
            require(channel not in channels, f"{channel} is started twice")
            channels.add(channel)
            at = start.dest
            while owner.setdefault(at, channel) == channel and at not in ids:
                ids.add(at)
                next = at.last_op
                require(isinstance(next, NextBd), "a descriptor's block ends with aie.next_bd")
                at = next.dest
            require(owner[at] == channel, "a descriptor of two channels")
            require(at is start.dest, "a ring does not come back to its first descriptor")
            block = start.chain
        numbers = [number(op.bd_id) for b in self.body.blocks for op in b.ops if isinstance(op, DmaBd)]
        require(len(set(numbers)) == len(numbers), "two descriptors of one number")
        if kind == MEMORY:
            for block, (_, index) in owner.items():
                for op in block.ops:
                    if isinstance(op, DmaBd):
                        half = number(op.bd_id) // 24
                        require(half == index % 2, "a descriptor of the other channels' half")
        require(len(ids) == len(numbers), "a descriptor that no channel runs")


@irdl_op_definition
class Mem(Dma):
    name = "aie.mem"
    tile = operand_def(IndexType())
    body = region_def()
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        return parse_body(parser, cls, terminated=True)


@irdl_op_definition
class MemtileDma(Dma):
    name = "aie.memtile_dma"
    tile = operand_def(IndexType())
    body = region_def()
    result = result_def(IndexType())
    traits = traits_def(HasParent(Device))

    @classmethod
    def parse(cls, parser):
        return parse_body(parser, cls, terminated=True)


@irdl_op_definition
class DmaStart(IRDLOperation):
    name = "aie.dma_start"
    direction = attr_def(StringAttr)
    channel = attr_def(IntegerAttr)
    valid = result_def(IntegerType(1))
    dest = successor_def()
    chain = successor_def()
    traits = traits_def(IsTerminator(), HasParent(Mem, MemtileDma))

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        direction = StringAttr(parser.parse_identifier())
        parser.parse_punctuation(",")
        channel = parse_number(parser)
        successors = []
        for _ in range(2):
            parser.parse_punctuation(",")
            successors.append(parser.parse_successor())
        parser.parse_punctuation(")")
        attributes = {"direction": direction, "channel": channel}
        return cls(result_types=[IntegerType(1)], attributes=attributes, successors=successors)

    def verify_(self):
        kind = enclosing_tile(self).kind
        require(self.direction.data in ("S2MM", "MM2S"), f"no direction {self.direction.data}")
        index = number(self.channel)
        require(0 <= index < CHANNELS[kind], f"a {kind} has no channel {index}")


@irdl_op_definition
class DmaBd(IRDLOperation):
    name = "aie.dma_bd"
    buffer = operand_def(MemRefType)
    offset = attr_def(IntegerAttr)
    len = attr_def(IntegerAttr)
    sizes = opt_attr_def(ArrayAttr)
    strides = opt_attr_def(ArrayAttr)
    bd_id = attr_def(IntegerAttr)
    traits = traits_def(HasParent(Mem, MemtileDma))

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        buffer = parser.parse_operand()
        parse_result(parser, buffer.type)
        attributes = {}
        for key in ("offset", "len"):
            parser.parse_keyword(key)
            parser.parse_punctuation("=")
            attributes[key] = parse_number(parser)
        for key in ("sizes", "strides"):
            if parser.parse_optional_keyword(key):
                parser.parse_punctuation("=")
                numbers = parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, lambda: parse_number(parser)
                )
                attributes[key] = ArrayAttr(numbers)
        parser.parse_punctuation(")")
        attributes |= parser.parse_optional_attr_dict()
        return cls(operands=[buffer], attributes=attributes)

    def verify_(self):
        tile = enclosing_tile(self)
        owner = self.buffer.owner
        require(isinstance(owner, Buffer), "expected an aie.buffer")
        require(tile_of(owner.tile) is tile, "a buffer of another tile")
        at, words = number(self.offset), number(self.len)
        require(0 < words < 1 << LENGTH_BITS[tile.kind], f"a transfer of {words} words")
        last = words - 1
        require((self.sizes is None) == (self.strides is None), "sizes go with strides")
        if self.sizes is not None:
            sizes, strides = list(map(number, self.sizes)), list(map(number, self.strides))
            total = 1
            for size in sizes:
                total *= size
            require(len(sizes) == len(strides), "a stride for each size")
            require(total == words, f"sizes of {total} words, a length of {words}")
            last = sum((size - 1) * stride for size, stride in zip(sizes, strides))
        end = WORD * (at + last + 1)
        require(at >= 0 and end <= owner.bytes(), "it leaves its buffer")
        id = number(self.bd_id)
        require(0 <= id < DESCRIPTORS[tile.kind], f"a {tile.kind} has no descriptor {id}")
        ops = list(self.parent.ops)
        names = [op.name for op in ops]
        expected = [UseLock.name, DmaBd.name, UseLock.name, NextBd.name]
        require(names == expected, "expected acquire, transfer, release and next in a block")
        require(ops[0].action.data == "AcquireGreaterEqual", "the first lock is to be acquired")
        require(ops[2].action.data == "Release", "the second lock is to be released")


@irdl_op_definition
class NextBd(IRDLOperation):
    name = "aie.next_bd"
    dest = successor_def()
    traits = traits_def(IsTerminator(), HasParent(Mem, MemtileDma))
    assembly_format = "$dest attr-dict"


@irdl_op_definition
class UseLock(IRDLOperation):
    name = "aie.use_lock"
    lock = operand_def(IndexType())
    value = operand_def(i32)
    action = attr_def(StringAttr)

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        lock = parser.parse_operand()
        parser.parse_punctuation(",")
        action = StringAttr(parser.parse_identifier())
        parser.parse_punctuation(",")
        value = parser.parse_operand()
        parser.parse_punctuation(")")
        return cls(operands=[lock, value], attributes={"action": action})

    def verify_(self):
        owner = self.lock.owner
        require(isinstance(owner, Lock), "expected an aie.lock")
        require(tile_of(owner.tile) is enclosing_tile(self), "a lock of another tile")
        action = self.action.data
        require(action in ("AcquireGreaterEqual", "Release"), f"no action {action}")
        require(0 < constant(self.value) <= LOCK_MAX, "a lock is changed by 1 to 63")


@irdl_op_definition
class RuntimeSequence(IRDLOperation):
    name = "aie.runtime_sequence"
    sym_name = attr_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(HasParent(Device), NoTerminator(), SymbolOpInterface())

    @classmethod
    def parse(cls, parser):
        name = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        return cls(attributes={"sym_name": name}, regions=[parser.parse_region(arguments)])

    def verify_(self):
        arguments = self.body.block.args
        require(len(arguments) <= ARGUMENTS, f"the firmware translates {ARGUMENTS} buffer objects")
        for argument in arguments:
            require(isinstance(argument.type, MemRefType), "an argument is a memref")
        blocks, pushed = {}, set()
        for op in self.body.block.ops:
            if isinstance(op, Blockwrite):
                blocks[number(op.address)] = False
            elif isinstance(op, AddressPatch):
                at = number(op.addr) - WORD
                require(at in blocks, f"no descriptor has its address at {number(op.addr):#x}")
                blocks[at] = True
            elif isinstance(op, Write32):
                register, value = (constant(v) & 0xFFFFFFFF for v in op.operands)
                column = register >> 25 << 25
                at = column | 0x1D000 | 0x20 * (value & 15)
                require(blocks.get(at, False), f"a task of a descriptor without an address: {at:#x}")
                if value >> 31:
                    pushed.add(register)
            elif isinstance(op, Sync):
                col, row, direction, channel, *count = (constant(v) for v in op.operands)
                require(count == [1, 1], "a wait for one channel")
                queue = col << 25 | row << 20 | 0x1D204 + 0x10 * direction + 8 * channel
                require(queue in pushed, "a wait for a token that is never sent")
                pushed.remove(queue)
        require(not pushed, "a token that nobody waits for")


def instruction(op_name, n):
    """An instruction of `n` numbers."""

    class Instruction(IRDLOperation):
        name = op_name
        traits = traits_def(HasParent(RuntimeSequence))

        @classmethod
        def parse(cls, parser):
            operands = parser.parse_comma_separated_list(
                parser.Delimiter.PAREN, parser.parse_operand
            )
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            if len(types) != len(operands):
                parser.raise_error(f"{len(operands)} operands, {len(types)} types")
            return cls(operands=operands)

        def verify_(self):
            for operand in self.operands:
                require(operand.type == i32, "expected i32")
                constant(operand)

    for i in range(n):
        setattr(Instruction, f"operand_{i}", operand_def())
    Instruction.__name__ = op_name
    return irdl_op_definition(Instruction)


Write32 = instruction("aiex.npu.write32", 2)
Maskwrite32 = instruction("aiex.npu.maskwrite32", 3)
Sync = instruction("aiex.npu.sync", 6)


@irdl_op_definition
class Blockwrite(IRDLOperation):
    name = "aiex.npu.blockwrite"
    data = operand_def(MemRefType)
    address = attr_def(IntegerAttr)
    traits = traits_def(HasParent(RuntimeSequence))
    assembly_format = "`(` $data `)` attr-dict `:` type($data)"

    def verify_(self):
        owner = self.data.owner
        require(isinstance(owner, memref.GetGlobalOp), "expected the result of a memref.get_global")
        found = SymbolTable.lookup_symbol(self, owner.name_)
        require(isinstance(found, Global), f"there is no global {owner.name_.string_value()}")
        require(found.type == self.data.type, "a global of another type")


@irdl_op_definition
class AddressPatch(IRDLOperation):
    name = "aiex.npu.address_patch"
    arg_plus = operand_def(i32)
    addr = attr_def(IntegerAttr)
    arg_idx = attr_def(IntegerAttr)
    traits = traits_def(HasParent(RuntimeSequence))

    @classmethod
    def parse(cls, parser):
        parser.parse_punctuation("(")
        plus = parser.parse_operand()
        parse_result(parser, i32)
        parser.parse_punctuation(")")
        return cls(operands=[plus], attributes=parser.parse_optional_attr_dict())

    def verify_(self):
        arguments = self.parent_op().body.block.args
        index, plus = number(self.arg_idx), constant(self.arg_plus)
        require(0 <= index < len(arguments), f"there is no argument {index}")
        size = WORD * arguments[index].type.get_shape()[0]
        require(0 <= plus < size, f"{plus} bytes into an argument of {size}")


@irdl_op_definition
class Global(IRDLOperation):
    """xDSL's own has no custom syntax."""

    name = "memref.global"
    sym_name = prop_def(StringAttr)
    sym_visibility = prop_def(StringAttr)
    type = prop_def(MemRefType)
    initial_value = prop_def(DenseIntElementsAttr)
    constant = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def parse(cls, parser):
        visibility = StringAttr(parser.parse_str_literal())
        parser.parse_keyword("constant")
        name = parser.parse_symbol_name()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        parser.parse_punctuation("=")
        parser.parse_keyword("dense")
        parser.parse_punctuation("<")
        values = parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, lambda: parser.parse_integer(allow_boolean=False)
        )
        parser.parse_punctuation(">")
        if type.get_shape() != (len(values),):
            parser.raise_error(f"{len(values)} values in {type}")
        from xdsl.dialects.builtin import TensorType

        value = DenseIntElementsAttr.from_list(TensorType(i32, [len(values)]), values)
        properties = {
            "sym_name": name,
            "sym_visibility": visibility,
            "type": type,
            "initial_value": value,
            "constant": UnitAttr(),
        }
        return cls(properties=properties)


AIE = Dialect(
    "aie",
    [
        Buffer,
        Connect,
        Core,
        Device,
        DmaBd,
        DmaStart,
        End,
        Lock,
        Mem,
        MemtileDma,
        NextBd,
        RuntimeSequence,
        ShimMux,
        Switchbox,
        Tile,
        UseLock,
    ],
)
AIEX = Dialect("aiex", [AddressPatch, Blockwrite, Maskwrite32, Sync, Write32])
MEMREF = Dialect("memref", [Global, memref.GetGlobalOp, memref.LoadOp])
DIALECTS = [AIE, AIEX, MEMREF, arith.Arith, cf.Cf, func.Func]
