#!/bin/sh
# Makes build/array.xclbin and build/insts.bin. PEANO_INSTALL_DIR: the folder of llvm-aie; MLIR_AIE_INSTALL_DIR:
# that of mlir_aie, with aiecc in its bin. xclbinutil has to be in PATH: without it aiecc leaves the image out.
set -eu
cd "$(dirname "$0")"
: "${PEANO_INSTALL_DIR:?the folder of llvm-aie}" "${MLIR_AIE_INSTALL_DIR:?the folder of mlir_aie}"
# aiecc keeps objects of earlier runs and does not see changed headers.
rm -rf build
mkdir build
cd build
"$PEANO_INSTALL_DIR/bin/clang++" --target=aie2p-none-unknown-elf -std=c++20 -O2 -DNDEBUG \
    -D__AIE_API_AIE_ADF_HPP__ -ffunction-sections -fdata-sections \
    -I "$MLIR_AIE_INSTALL_DIR/include" -I ../kernels \
    -c ../kernels/ternary_matmul.cc -o ternary_matmul.o
# Compiled only: the image does not call it.
"$PEANO_INSTALL_DIR/bin/clang++" --target=aie2p-none-unknown-elf -std=c++20 -O2 -DNDEBUG \
    -D__AIE_API_AIE_ADF_HPP__ -ffunction-sections -fdata-sections \
    -I "$MLIR_AIE_INSTALL_DIR/include" -I ../kernels \
    -c ../kernels/hadamard_quantize.cc -o hadamard_quantize.o
# Buffers have addresses and cross banks, so they are taken in order and not bank by bank.
"$MLIR_AIE_INSTALL_DIR/bin/aiecc" --peano="$PEANO_INSTALL_DIR" --alloc-scheme=basic-sequential \
    --tmpdir=project --get-xclbin --xclbin-name=array.xclbin \
    --get-npu-insts --npu-insts-name=insts.bin ../array.mlir
