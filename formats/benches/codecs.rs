//! Throughput of the codecs on a stripe of a matrix, in bytes of the file's side.
//!
//! `cargo bench -p formats`

use divan::Bencher;
use divan::counter::BytesCount;
use formats::{TernaryRows, pq2_0, ptq1_0, q4nx, scale, t2};
use half::f16;

const ROWS: usize = 256;
const COLS: usize = 5120;
const TILES: usize = ROWS / q4nx::ROW_BLOCK * (COLS / q4nx::COL_BLOCK);

fn main() {
    divan::main();
}

fn sample() -> TernaryRows {
    let mut rows = TernaryRows::zeroed(ROWS, COLS);
    for r in 0..ROWS {
        for k in 0..COLS {
            rows.set_code(r, k, ((5 * r + 7 * k + 2 * (k / 16) + r / 8) % 3) as u8);
        }
        for g in 0..rows.groups_per_row() {
            rows.set_scale(r, g, f16::from_f32((1 + (3 * r + 5 * g) % 31) as f32 / 64.0));
        }
    }
    rows
}

fn encode_into(bencher: Bencher, bytes: usize, encode: impl Fn(&TernaryRows, &mut [u8]) + Sync) {
    let rows = sample();
    let mut out = vec![0; bytes];
    bencher
        .counter(BytesCount::new(bytes))
        .bench_local(|| encode(divan::black_box(&rows), divan::black_box(&mut out)));
}

fn decode_from(
    bencher: Bencher,
    bytes: usize,
    encode: impl Fn(&TernaryRows, &mut [u8]),
    decode: impl Fn(&[u8], &mut TernaryRows) + Sync,
) {
    let mut rows = sample();
    let mut file = vec![0; bytes];
    encode(&rows, &mut file);
    bencher
        .counter(BytesCount::new(bytes))
        .bench_local(|| decode(divan::black_box(&file), divan::black_box(&mut rows)));
}

const PQ2_0: usize = ROWS * COLS / 128 * pq2_0::BLOCK_BYTES;
const PTQ1_0: usize = ROWS * COLS / 128 * ptq1_0::BLOCK_BYTES;
const Q4NX: usize = TILES * q4nx::CHUNK_BYTES;
const T2: usize = TILES * t2::PAYLOAD_BYTES;

#[divan::bench]
fn memcpy(bencher: Bencher) {
    let (from, mut to) = (vec![1u8; PQ2_0], vec![0u8; PQ2_0]);
    bencher
        .counter(BytesCount::new(PQ2_0))
        .bench_local(|| divan::black_box(&mut to).copy_from_slice(divan::black_box(&from)));
}

#[divan::bench]
fn pq2_0_encode(bencher: Bencher) {
    encode_into(bencher, PQ2_0, pq2_0::encode);
}

#[divan::bench]
fn pq2_0_decode(bencher: Bencher) {
    decode_from(bencher, PQ2_0, pq2_0::encode, |b, r| pq2_0::decode(b, r).expect("own bytes"));
}

#[divan::bench]
fn ptq1_0_encode(bencher: Bencher) {
    encode_into(bencher, PTQ1_0, |r, b| ptq1_0::encode(r, b).expect("ternary"));
}

#[divan::bench]
fn ptq1_0_decode(bencher: Bencher) {
    let encode = |r: &TernaryRows, b: &mut [u8]| ptq1_0::encode(r, b).expect("ternary");
    decode_from(bencher, PTQ1_0, encode, |b, r| ptq1_0::decode(b, r).expect("own bytes"));
}

#[divan::bench]
fn q4nx_encode(bencher: Bencher) {
    encode_into(bencher, Q4NX, |r, b| q4nx::encode(r, b).expect("ternary"));
}

#[divan::bench]
fn q4nx_decode(bencher: Bencher) {
    let encode = |r: &TernaryRows, b: &mut [u8]| q4nx::encode(r, b).expect("ternary");
    decode_from(bencher, Q4NX, encode, |b, r| q4nx::decode(b, r).expect("own bytes"));
}

#[divan::bench]
fn q4nx_dequantize(bencher: Bencher) {
    let rows = sample();
    let mut file = vec![0; Q4NX];
    q4nx::encode(&rows, &mut file).expect("ternary");
    let mut out = vec![0.0; q4nx::ROW_BLOCK * q4nx::COL_BLOCK];
    bencher.counter(BytesCount::new(q4nx::CHUNK_BYTES)).bench_local(|| {
        let chunk = divan::black_box(&file[..q4nx::CHUNK_BYTES]);
        q4nx::dequantize(q4nx::ChunkKind::Q4_1, chunk, divan::black_box(&mut out))
    });
}

#[divan::bench]
fn t2_pack(bencher: Bencher) {
    encode_into(bencher, T2, |r, b| t2::pack(r, t2::Stride::Packed, b).expect("ternary"));
}

#[divan::bench]
fn t2_unpack(bencher: Bencher) {
    let pack = |r: &TernaryRows, b: &mut [u8]| t2::pack(r, t2::Stride::Packed, b).expect("ternary");
    decode_from(bencher, T2, pack, |b, r| {
        t2::unpack(b, t2::Stride::Packed, r).expect("own bytes");
    });
}

/// Per call: 4096 values over the whole range.
#[divan::bench]
fn round_to_grid(bencher: Bencher) {
    let values: Vec<f64> = (0..4096).map(|i| (f64::from(i) * 0.01 - 25.0).exp2()).collect();
    bencher.counter(divan::counter::ItemsCount::new(values.len())).bench_local(|| {
        let values = divan::black_box(&values);
        values.iter().filter_map(|s| scale::round_to_grid(*s)).fold(0, |a, s| a ^ s.to_bits())
    });
}

#[divan::bench]
fn nearest_on_grid(bencher: Bencher) {
    let values: Vec<f64> = (0..4096).map(|i| (f64::from(i) * 0.01 - 25.0).exp2()).collect();
    bencher.counter(divan::counter::ItemsCount::new(values.len())).bench_local(|| {
        let values = divan::black_box(&values);
        values.iter().map(|s| scale::nearest(*s)).sum::<f64>()
    });
}
