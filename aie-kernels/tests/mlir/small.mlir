module {
  aie.device(npu2) {
    func.func private @strip_out(memref<64xf32>, i32, memref<16xf32>, i32) attributes {link_with = "ternary_matmul.o"}
    %tile_0_0 = aie.tile(0, 0)
    %tile_0_1 = aie.tile(0, 1)
    %tile_0_2 = aie.tile(0, 2)
    %tile_0_3 = aie.tile(0, 3)
    %tile_0_4 = aie.tile(0, 4)
    %tile_0_5 = aie.tile(0, 5)
    %acc_0_2 = aie.buffer(%tile_0_2) {address = 4096 : i32, sym_name = "acc_0_2"} : memref<64xf32>
    %out_0_2 = aie.buffer(%tile_0_2) {address = 8192 : i32, sym_name = "out_0_2"} : memref<16xf32>
    %header_0_2 = aie.buffer(%tile_0_2) {address = 8256 : i32, sym_name = "header_0_2"} : memref<16xi32>
    %lock_0_2_0 = aie.lock(%tile_0_2, 0) {init = 2 : i32, sym_name = "lock_0_2_0"}
    %lock_0_2_1 = aie.lock(%tile_0_2, 1) {init = 0 : i32, sym_name = "lock_0_2_1"}
    %switchbox_0_0 = aie.switchbox(%tile_0_0) {
      aie.connect<South : 7, North : 4>
    }
    %shim_mux_0_0 = aie.shim_mux(%tile_0_0) {
      aie.connect<DMA : 1, North : 7>
    }
    %switchbox_0_1 = aie.switchbox(%tile_0_1) {
      aie.connect<South : 4, North : 4>
    }
    %switchbox_0_2 = aie.switchbox(%tile_0_2) {
      aie.connect<South : 4, DMA : 0>
    }
    %dma_0_2 = aie.mem(%tile_0_2) {
      %c1 = arith.constant 1 : i32
      %c2 = arith.constant 2 : i32
      %start0 = aie.dma_start(S2MM, 0, ^bd0, ^end)
    ^bd0:
      aie.use_lock(%lock_0_2_0, AcquireGreaterEqual, %c1)
      aie.dma_bd(%acc_0_2 : memref<64xf32> offset = 16 len = 16 sizes = [4, 4] strides = [8, 1]) {bd_id = 0 : i32}
      aie.use_lock(%lock_0_2_1, Release, %c2)
      aie.next_bd ^bd0
    ^end:
      aie.end
    }
    %core_0_2 = aie.core(%tile_0_2) {
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      %c8 = arith.constant 8 : i32
      cf.br ^i1(%c0 : i32)
    ^i1(%i1_r0: i32):
      aie.use_lock(%lock_0_2_1, AcquireGreaterEqual, %c1)
      %v1 = arith.muli %i1_r0, %c8 : i32
      %v2 = arith.addi %v1, %c1 : i32
      %v3 = arith.index_cast %v2 : i32 to index
      %v4 = memref.load %header_0_2[%v3] : memref<16xi32>
      %v5 = arith.cmpi eq, %v4, %c0 : i32
      cf.cond_br %v5, ^i6(%i1_r0, %v4 : i32, i32), ^i4(%i1_r0, %v4 : i32, i32)
    ^i4(%i4_r0: i32, %i4_r1: i32):
      func.call @strip_out(%acc_0_2, %i4_r1, %out_0_2, %c1) : (memref<64xf32>, i32, memref<16xf32>, i32) -> ()
      %v6 = arith.addi %i4_r1, %c1 : i32
      cf.br ^i6(%i4_r0, %v6 : i32, i32)
    ^i6(%i6_r0: i32, %i6_r1: i32):
      %v7 = arith.xori %i6_r0, %c1 : i32
      aie.use_lock(%lock_0_2_0, Release, %c1)
      %v8 = arith.cmpi ult, %v7, %i6_r1 : i32
      cf.cond_br %v8, ^i1(%v7 : i32), ^i9(%v7 : i32)
    ^i9(%i9_r0: i32):
      cf.br ^i1(%i9_r0 : i32)
    ^end:
      aie.end
    } {stack_size = 4096 : i32}
    memref.global "private" constant @block_0 : memref<8xi32> = dense<[16, 0, 0, 0, -1073741824, 1, 0, 1]>
    aie.runtime_sequence @job(%weights: memref<32xi32>, %activations: memref<32xi32>) {
      %o0 = memref.get_global @block_0 : memref<8xi32>
      aiex.npu.blockwrite(%o0) {address = 118784 : ui32} : memref<8xi32>
      %o1_0 = arith.constant 64 : i32
      aiex.npu.address_patch(%o1_0 : i32) {addr = 118788 : ui32, arg_idx = 1 : i32}
      %o2_0 = arith.constant 119296 : i32
      %o2_1 = arith.constant 3840 : i32
      %o2_2 = arith.constant 7936 : i32
      aiex.npu.maskwrite32(%o2_0, %o2_1, %o2_2) : i32, i32, i32
      %o3_0 = arith.constant 119324 : i32
      %o3_1 = arith.constant -2147483648 : i32
      aiex.npu.write32(%o3_0, %o3_1) : i32, i32
      %o4_0 = arith.constant 0 : i32
      %o4_1 = arith.constant 0 : i32
      %o4_2 = arith.constant 1 : i32
      %o4_3 = arith.constant 1 : i32
      %o4_4 = arith.constant 1 : i32
      %o4_5 = arith.constant 1 : i32
      aiex.npu.sync(%o4_0, %o4_1, %o4_2, %o4_3, %o4_4, %o4_5) : i32, i32, i32, i32, i32, i32
    }
  }
}
