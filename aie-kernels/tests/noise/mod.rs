//! Seeded operands.

use aie_kernels::arithmetic::Matrix;
use aie_kernels::layout::GROUP;

pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Codes below `top`, scales of both signs from 2^-14 to 2^2 with 8 significant bits.
pub(crate) fn matrix(rows: usize, k: usize, noise: &mut Noise, top: u32) -> Matrix {
    let codes = (0..rows * k).map(|_| (noise.next() % top) as u8).collect();
    let scale = |n: u32| (((n & 1) << 15) | ((113 + n / 2 % 17) << 7) | (n / 64 % 128)) as u16;
    let scales = (0..rows * k / GROUP).map(|_| scale(noise.next())).collect();
    Matrix::new(rows, k, codes, scales).unwrap()
}
