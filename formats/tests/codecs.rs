//! All codecs against each other and against vectors of the reference packer.

use std::fmt::Write as _;

use formats::q4nx::{COL_BLOCK, Content, ROW_BLOCK};
use formats::t2::Stride;
use formats::{Fault, GROUP, TernaryRows, mlx, pq2_0, ptq1_0, q4nx, scale, t2};
use half::{bf16, f16};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The matrix that the reference packer was run with.
fn reference_matrix() -> TernaryRows {
    let mut rows = TernaryRows::zeroed(64, 1024);
    for r in 0..64 {
        for k in 0..1024 {
            rows.set_code(r, k, ((5 * r + 7 * k + 2 * (k / 16) + r / 8) % 3) as u8);
        }
        for g in 0..8 {
            rows.set_scale(r, g, f16::from_f32((1 + (3 * r + 5 * g) % 31) as f32 / 64.0));
        }
    }
    rows
}

#[test]
fn q4nx_of_the_reference_packer() {
    let bytes = encode_q4nx(&reference_matrix());
    assert_eq!(bytes.len(), 40_960);
    assert_eq!(hex(&bytes[..16]), "803c803de03d203e503e803e983eb03e");
    assert_eq!(hex(&bytes[512..520]), "80bc80bde0bd20be");
    assert_eq!(hex(&bytes[1024..1048]), "200112201220011201122001200112201220011201122001");
    assert_eq!(hex(&bytes[3072..3080]), "0112200120011220");
    assert_eq!(
        hex(&Sha256::digest(&bytes)),
        "8e2fcdb4ac8598ef1f63f2609a6286f5f34d096e875cef1f31bfbfb96ef86d11"
    );
}

#[test]
fn t2_of_the_reference_packer() {
    let bytes = pack_t2(&reference_matrix(), Stride::Packed);
    assert_eq!(hex(&bytes[..8]), "803c803de03d203e");
    assert_eq!(hex(&bytes[64..72]), "c03d103e403e703e");
    for bytes in bytes[128..2176].as_chunks::<3>().0.iter().take(8) {
        assert_eq!(hex(bytes), "188661");
    }
    let padded = pack_t2(&reference_matrix(), Stride::Padded);
    for (tile, wide) in bytes.chunks_exact(2176).zip(padded.chunks_exact(2560)) {
        assert_eq!(wide[..2176], *tile);
        assert_eq!(wide[2176..], [0; 384]);
    }
}

fn tiles(rows: &TernaryRows) -> usize {
    rows.rows() / ROW_BLOCK * (rows.cols() / COL_BLOCK)
}

fn encode_pq2_0(rows: &TernaryRows) -> Vec<u8> {
    let mut out = vec![0xEE; rows.rows() * pq2_0::row_bytes(rows.cols())];
    pq2_0::encode(rows, &mut out);
    out
}

fn encode_ptq1_0(rows: &TernaryRows) -> Vec<u8> {
    let mut out = vec![0xEE; rows.rows() * ptq1_0::row_bytes(rows.cols())];
    ptq1_0::encode(rows, &mut out).expect("ternary rows on the grid");
    out
}

fn encode_q4nx(rows: &TernaryRows) -> Vec<u8> {
    let mut out = vec![0xEE; tiles(rows) * q4nx::CHUNK_BYTES];
    q4nx::encode(rows, &mut out).expect("ternary rows on the grid");
    out
}

fn pack_t2(rows: &TernaryRows, stride: Stride) -> Vec<u8> {
    let mut out = vec![0xEE; tiles(rows) * stride.bytes()];
    t2::pack(rows, stride, &mut out).expect("ternary rows on the grid");
    out
}

/// The three tensors of an MLX module: weight, scales, biases.
fn make_mlx(rows: &TernaryRows, scale_type: mlx::ScaleType) -> [Vec<u8>; 3] {
    let mut weight = Vec::new();
    for r in 0..rows.rows() {
        for word in 0..rows.cols() / 16 {
            let codes = (0..16).map(|i| u32::from(rows.code(r, 16 * word + i)) << (2 * i));
            weight.extend(codes.sum::<u32>().to_le_bytes());
        }
    }
    let plane = |sign: f32| -> Vec<u8> {
        let values = rows.scales().iter().map(|s| sign * s.to_f32());
        values
            .flat_map(|s| match scale_type {
                mlx::ScaleType::F16 => f16::from_f32(s).to_le_bytes(),
                mlx::ScaleType::Bf16 => bf16::from_f32(s).to_le_bytes(),
            })
            .collect()
    };
    [weight, plane(1.0), plane(-1.0)]
}

fn decode_with(
    like: &TernaryRows,
    decode: impl FnOnce(&mut TernaryRows) -> Result<(), Fault>,
) -> TernaryRows {
    let mut rows = TernaryRows::zeroed(like.rows(), like.cols());
    // What was there before must not shine through.
    rows.parts_mut().0.fill(0b1010_1010);
    rows.parts_mut().1.fill(f16::MAX);
    decode(&mut rows).expect("what the codec wrote");
    rows
}

/// A ternary matrix of whole tiles, with another scale in every group (there are
/// more grid values than groups), of either sign.
fn matrices() -> impl Strategy<Value = TernaryRows> {
    let grid: Vec<u16> = (0..0x7C00).filter(|bits| scale::on_grid(f16::from_bits(*bits))).collect();
    (1..3usize, 1..4usize).prop_flat_map(move |(row_blocks, col_blocks)| {
        let (n_rows, cols) = (row_blocks * ROW_BLOCK, col_blocks * COL_BLOCK);
        let grid = grid.clone();
        let codes = prop::collection::vec(any::<u8>(), n_rows * cols);
        (codes, 0..grid.len(), any::<u64>()).prop_map(move |(codes, start, signs)| {
            let mut rows = TernaryRows::zeroed(n_rows, cols);
            for (i, code) in codes.iter().enumerate() {
                rows.set_code(i / cols, i % cols, code % 3);
            }
            for i in 0..n_rows * cols / GROUP {
                // 1999 and the grid's 4352 values have no common factor.
                let bits = grid[(start + 1999 * i) % grid.len()];
                let sign = if signs >> (i % 64) & 1 == 1 { 0x8000 } else { 0 };
                let s = f16::from_bits(bits | sign);
                rows.set_scale(i / (cols / GROUP), i % (cols / GROUP), s);
            }
            rows
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Writing, reading and writing again is the identity for every codec, and
    /// all of them read the same rows.
    #[test]
    fn every_codec_gives_back_what_it_was_given(rows in matrices()) {
        let blocks = encode_pq2_0(&rows);
        let read = decode_with(&rows, |r| pq2_0::decode(&blocks, r));
        prop_assert_eq!(&read, &rows);
        prop_assert_eq!(encode_pq2_0(&read), blocks);

        let blocks = encode_ptq1_0(&rows);
        prop_assert_eq!(ptq1_0::first_noncanonical(&blocks), None);
        let read = decode_with(&rows, |r| ptq1_0::decode(&blocks, r));
        prop_assert_eq!(&read, &rows);
        prop_assert_eq!(encode_ptq1_0(&read), blocks);

        let chunks = encode_q4nx(&rows);
        let read = decode_with(&rows, |r| q4nx::decode(&chunks, r));
        prop_assert_eq!(&read, &rows);
        prop_assert_eq!(encode_q4nx(&read), chunks);

        for stride in [Stride::Packed, Stride::Padded] {
            let tiles = pack_t2(&rows, stride);
            let read = decode_with(&rows, |r| t2::unpack(&tiles, stride, r));
            prop_assert_eq!(&read, &rows);
            prop_assert_eq!(pack_t2(&read, stride), tiles);
        }

        for scale_type in [mlx::ScaleType::F16, mlx::ScaleType::Bf16] {
            let [weight, scales, biases] = make_mlx(&rows, scale_type);
            let pack = mlx::Rows { weight: &weight, scales: &scales, biases: &biases, scale_type };
            prop_assert_eq!(&decode_with(&rows, |r| mlx::decode(pack, r)), &rows);
        }
    }

    /// Every plane of a q4nx chunk is what the format says, each place by its
    /// own formula; its values are those of the rows.
    #[test]
    fn q4nx_planes_and_values(rows in matrices()) {
        let n_col_blocks = rows.cols() / COL_BLOCK;
        let mut values = vec![0.0; rows.cols()];
        let mut tile = vec![0.0; ROW_BLOCK * COL_BLOCK];
        for (f, chunk) in encode_q4nx(&rows).chunks_exact(q4nx::CHUNK_BYTES).enumerate() {
            prop_assert_eq!(q4nx::classify(chunk), Content::ExactTernary);
            q4nx::dequantize(q4nx::ChunkKind::Q4_1, chunk, &mut tile).unwrap();
            for r in 0..ROW_BLOCK {
                let row = f / n_col_blocks * ROW_BLOCK + r;
                let col0 = f % n_col_blocks * COL_BLOCK;
                for g in 0..8 {
                    let at = 2 * (g * 32 + r);
                    let d = bf16::from_le_bytes([chunk[at], chunk[at + 1]]);
                    let m = bf16::from_le_bytes([chunk[512 + at], chunk[513 + at]]);
                    prop_assert_eq!(d.to_f32(), rows.row_scales(row)[(col0 + 32 * g) / GROUP].to_f32());
                    prop_assert_eq!(m.to_bits(), d.to_bits() ^ 0x8000);
                }
                rows.dequantize_row(row, &mut values);
                prop_assert_eq!(&tile[r * COL_BLOCK..][..COL_BLOCK], &values[col0..][..COL_BLOCK]);
            }
        }
    }

    /// A changed byte is noticed, or makes another matrix that is written as it
    /// was read.
    #[test]
    fn q4nx_with_a_changed_byte(rows in matrices(), at in any::<prop::sample::Index>(), flip in 1..=255u8) {
        let mut bytes = encode_q4nx(&rows);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut read = TernaryRows::zeroed(rows.rows(), rows.cols());
        if q4nx::decode(&bytes, &mut read).is_ok() {
            prop_assert!(at % q4nx::CHUNK_BYTES >= 1024, "scales stand in eight places");
            prop_assert_eq!(encode_q4nx(&read), bytes);
        }
    }

    /// Foreign bytes of any length are read or refused.
    #[test]
    fn foreign_bytes(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        let mut tile = TernaryRows::zeroed(ROW_BLOCK, COL_BLOCK);
        let _ = q4nx::decode(&bytes, &mut tile);
        let _ = t2::unpack(&bytes, Stride::Packed, &mut tile);
        let _ = t2::unpack(&bytes[..bytes.len().min(2176)], Stride::Packed, &mut tile);
        let mut out = vec![0.0; ROW_BLOCK * COL_BLOCK];
        for kind in [q4nx::ChunkKind::Q4_1, q4nx::ChunkKind::Q4_0, q4nx::ChunkKind::Q8, q4nx::ChunkKind::Q4K] {
            let _ = q4nx::dequantize(kind, &bytes, &mut out);
            let _ = q4nx::dequantize(kind, &bytes[..bytes.len().min(kind.bytes())], &mut out);
        }
        let groups = bytes.len() / 34;
        let mut rows = TernaryRows::zeroed(1, groups * GROUP);
        let _ = pq2_0::decode(&bytes, &mut rows);
        let _ = pq2_0::decode(&bytes[..groups * 34], &mut rows);
        let _ = ptq1_0::decode(&bytes[..groups * 28], &mut rows);
        let _ = ptq1_0::first_noncanonical(&bytes);
    }
}

/// A scale that is no number stops every reader at its group.
#[test]
fn infinite_and_nan_scales_are_refused() {
    let rows = reference_matrix();
    let mut read = TernaryRows::zeroed(64, 1024);
    for bits in [0x7C00u16, 0xFC00, 0x7E00] {
        let bits = bits.to_le_bytes();
        let mut bytes = encode_pq2_0(&rows);
        bytes[34 * 77..][..2].copy_from_slice(&bits);
        let fault = pq2_0::decode(&bytes, &mut read).unwrap_err();
        assert_eq!((fault.unit, fault.index), ("group", 77));

        let mut bytes = encode_ptq1_0(&rows);
        bytes[28 * 77 + 26..][..2].copy_from_slice(&bits);
        let fault = ptq1_0::decode(&bytes, &mut read).unwrap_err();
        assert_eq!((fault.unit, fault.index), ("group", 77));
    }
    // In a q4nx chunk the fp16 patterns are finite bf16 numbers past fp16.
    for bits in [0x7C00u16, 0xFC00, 0x7E00, 0x7F80, 0xFF80, 0x7FC0] {
        let mut bytes = encode_q4nx(&rows);
        for g in 4..8 {
            let at = 3 * q4nx::CHUNK_BYTES + 2 * (32 * g + 9);
            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            bytes[at + 512..at + 514].copy_from_slice(&(bits ^ 0x8000).to_le_bytes());
        }
        let fault = q4nx::decode(&bytes, &mut read).unwrap_err();
        assert_eq!((fault.unit, fault.index), ("chunk", 3));
        assert!(fault.found.contains("at row 9, columns 128.."), "{fault}");
    }
}
