//! `n16` and `n8`, the NPU's arithmetic, in scalar code. The kernels have to give these bits.
//!
//! Activations of a block of 128 become integers `q = round_half_even(x / d)`, with `d` the power of
//! two that puts `max|x|` into `[2^14, 2^15)` (`n8`: `[2^6, 2^7)`), clamped to ±32767 (±127); a block
//! whose `max|x|` is below 2^-100 is all zeros with `d = 0`.
//!
//! For an output, group after group: `isum` is the exact integer sum of `(code - 1) * q`; field `j` is
//! `output / 8 % 4`; `4^j * isum` is split into bf16 parts `h + m + l` (`n8`: `h + m`), each the rest
//! rounded to nearest even; `sc = s * (d * 4^-j)`; then `acc += h*sc`, `m*sc`, `l*sc`. Products are
//! exact, each sum is rounded once, and denormals are zeros, as on the cores. K is padded to slices of
//! 512 with scales of zero.

use std::ops::Range;

use crate::layout::{GROUP, GROUPS, ROWS, STRIP_ROWS};

/// Which integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// int16 activations.
    N16,
    /// int8 activations.
    N8,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::N16, Self::N8];

    fn top(self) -> i32 {
        match self {
            Self::N16 => 14,
            Self::N8 => 6,
        }
    }

    /// The largest magnitude of an integer.
    #[must_use]
    pub fn limit(self) -> i16 {
        match self {
            Self::N16 => 32767,
            Self::N8 => 127,
        }
    }

    fn parts(self) -> usize {
        match self {
            Self::N16 => 3,
            Self::N8 => 2,
        }
    }
}

/// What is wrong with the operands of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// Not 1 to 8 rows.
    #[error("expected 1 to 8 rows of activations, found {found}")]
    Rows {
        /// Rows given.
        found: usize,
    },
    /// A length that does not fit the shape.
    #[error("{what}: expected {expected} values, found {found}")]
    Length {
        /// The operand.
        what: &'static str,
        /// Values the shape asks for.
        expected: usize,
        /// Values given.
        found: usize,
    },
    /// Not whole groups of 128.
    #[error("expected a width of whole groups of 128, found {found}")]
    Width {
        /// Columns given.
        found: usize,
    },
    /// An infinite value, or none at all.
    #[error("activation {at} of row {row} is not finite")]
    NonFinite {
        /// The row.
        row: usize,
        /// The column.
        at: usize,
    },
    /// An integer outside the range of its mode, or a code above 3.
    #[error("{what} {at} is out of range: {found}")]
    Range {
        /// The operand.
        what: &'static str,
        /// Index in the operand.
        at: usize,
        /// The value.
        found: i32,
    },
}

/// Up to 8 rows of activations as integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Activations {
    mode: Mode,
    k: usize,
    /// `[rows, k]`
    q: Vec<i16>,
    /// `[rows, k / 128]`
    d: Vec<f32>,
}

impl Activations {
    /// Makes integers of `x`, `[rows, k]` row-major.
    ///
    /// # Errors
    /// No 1 to 8 rows, a width that is no multiple of 128, or a value that is not finite.
    pub fn new(x: &[f32], k: usize, mode: Mode) -> Result<Self, OperandError> {
        if k == 0 || !k.is_multiple_of(GROUP) {
            return Err(OperandError::Width { found: k });
        }
        let rows = x.len() / k;
        if x.len() != rows * k {
            return Err(OperandError::Length {
                what: "activations",
                expected: rows * k,
                found: x.len(),
            });
        }
        if rows == 0 || rows > ROWS {
            return Err(OperandError::Rows { found: rows });
        }
        if let Some(at) = x.iter().position(|x| !x.is_finite()) {
            return Err(OperandError::NonFinite { row: at / k, at: at % k });
        }
        let (mut q, mut d) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len() / GROUP));
        for block in x.chunks_exact(GROUP) {
            let scale = block_scale(block, mode);
            let limit = f32::from(mode.limit());
            q.extend(block.iter().map(|x| {
                let x = if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even() };
                x.clamp(-limit, limit) as i16
            }));
            d.push(scale);
        }
        Ok(Self { mode, k, q, d })
    }

    /// Rows of given integers: `q` is `[rows, k]`, `d` `[rows, k / 128]`, powers of two or zero.
    ///
    /// # Errors
    /// Lengths that do not fit, or integers outside of the mode's range.
    pub fn from_integers(
        q: Vec<i16>,
        d: Vec<f32>,
        k: usize,
        mode: Mode,
    ) -> Result<Self, OperandError> {
        if k == 0 || !k.is_multiple_of(GROUP) {
            return Err(OperandError::Width { found: k });
        }
        let rows = q.len() / k;
        if rows == 0 || rows > ROWS || q.len() != rows * k {
            return Err(OperandError::Rows { found: rows });
        }
        if d.len() * GROUP != q.len() {
            let expected = q.len() / GROUP;
            return Err(OperandError::Length { what: "block scales", expected, found: d.len() });
        }
        if let Some(at) = q.iter().position(|q| q.unsigned_abs() > mode.limit().unsigned_abs()) {
            return Err(OperandError::Range { what: "integer", at, found: q[at].into() });
        }
        Ok(Self { mode, k, q, d })
    }

    /// Which integers.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Columns.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows that carry data.
    #[must_use]
    pub fn live_rows(&self) -> usize {
        self.q.len() / self.k
    }

    /// Integers and block scale of group `g` of `row`; nothing beyond the last column.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn group(&self, row: usize, g: usize) -> Option<(&[i16], f32)> {
        let groups = self.k / GROUP;
        (g < groups).then(|| {
            let at = row * groups + g;
            (&self.q[at * GROUP..(at + 1) * GROUP], self.d[at])
        })
    }
}

fn block_scale(block: &[f32], mode: Mode) -> f32 {
    let most = block.iter().fold(0, |most, x| most.max(x.abs().to_bits()));
    let exponent = (most >> 23) as i32 - 127;
    if exponent < -100 { 0.0 } else { power_of_two(exponent - mode.top()) }
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// A ternary matrix: codes 0 to 3 (weight = scale * (code - 1)) and bf16 scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    rows: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u16>,
}

impl Matrix {
    /// `codes`: `[rows, k]`; `scales`: bf16 bits, `[rows, k / 128]`.
    ///
    /// # Errors
    /// A width that is no multiple of 128, lengths that do not fit, a code above 3.
    pub fn new(
        rows: usize,
        k: usize,
        codes: Vec<u8>,
        scales: Vec<u16>,
    ) -> Result<Self, OperandError> {
        if k == 0 || !k.is_multiple_of(GROUP) {
            return Err(OperandError::Width { found: k });
        }
        for (what, expected, found) in
            [("codes", rows * k, codes.len()), ("scales", rows * k / GROUP, scales.len())]
        {
            if expected != found {
                return Err(OperandError::Length { what, expected, found });
            }
        }
        if let Some(at) = codes.iter().position(|&code| code > 3) {
            return Err(OperandError::Range { what: "code", at, found: codes[at].into() });
        }
        Ok(Self { rows, k, codes, scales })
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Some of its rows.
    pub(crate) fn strip(&self, rows: Range<usize>) -> Self {
        let groups = self.k / GROUP;
        let codes = self.codes[rows.start * self.k..rows.end * self.k].to_vec();
        let scales = self.scales[rows.start * groups..rows.end * groups].to_vec();
        Self { rows: rows.len(), k: self.k, codes, scales }
    }

    /// The code at (`row`, `k`), 1 (nothing) outside of the matrix.
    #[must_use]
    pub fn code(&self, row: usize, k: usize) -> u8 {
        if row < self.rows && k < self.k { self.codes[row * self.k + k] } else { 1 }
    }

    /// The bf16 bits of the scale of group `g` of `row`, zero outside of the matrix.
    #[must_use]
    pub fn scale(&self, row: usize, g: usize) -> u16 {
        let groups = self.k / GROUP;
        if row < self.rows && g < groups { self.scales[row * groups + g] } else { 0 }
    }
}

/// The product, `[live rows, outputs]`.
///
/// # Errors
/// Widths that differ.
pub fn matmul(w: &Matrix, x: &Activations) -> Result<Vec<f32>, OperandError> {
    if w.k != x.k {
        return Err(OperandError::Length { what: "columns", expected: w.k, found: x.k });
    }
    let mut out = Vec::with_capacity(x.live_rows() * w.rows);
    for row in 0..x.live_rows() {
        out.extend((0..w.rows).map(|o| dot(w, x, row, o)));
    }
    Ok(out)
}

fn dot(w: &Matrix, x: &Activations, row: usize, output: usize) -> f32 {
    let field = (output % STRIP_ROWS / 8) as i32;
    let mut acc = 0.0f32;
    for g in 0..w.k.div_ceil(GROUP * GROUPS) * GROUPS {
        let (isum, d) = match x.group(row, g) {
            Some((q, d)) => {
                let codes = &w.codes[output * w.k + g * GROUP..][..GROUP];
                let terms = q.iter().zip(codes);
                (terms.map(|(&q, &c)| i32::from(q) * (i32::from(c) - 1)).sum(), d)
            }
            None => (0i32, 0.0),
        };
        let s = flush(f32::from_bits(u32::from(w.scale(output, g)) << 16));
        let sc = to_bf16(flush(s * flush(flush(d) * power_of_two(-2 * field))));
        let mut rest = (isum << (2 * field)) as f32;
        for _ in 0..x.mode.parts() {
            let part = to_bf16(rest);
            rest -= part;
            acc = flush(acc + flush(part * sc));
        }
    }
    acc
}

/// Denormals are zeros of their sign.
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// Rounded to the nearest bf16, ties to even.
fn to_bf16(x: f32) -> f32 {
    let bits = flush(x).to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // 2 * 0.5 * (3 - 1) with d = 2^-14 and q = 16384 for 1.0.
        let mut x = vec![0.0; GROUP];
        x[..3].copy_from_slice(&[1.0, -0.5, 1.5]);
        let x = Activations::new(&x, GROUP, Mode::N16).unwrap();
        assert_eq!(x.group(0, 0).map(|(q, d)| (q[1], d)), Some((-8192, 1.0 / 16384.0)));
        let mut codes = vec![1; GROUP];
        codes[..3].copy_from_slice(&[2, 0, 3]);
        let w = Matrix::new(1, GROUP, codes, vec![0x3f00]).unwrap();
        // 0.5 * (1 + 0.5 + 2 * 1.5)
        assert_eq!(matmul(&w, &x).unwrap(), [2.25]);
    }

    #[test]
    fn bad_operands() {
        let wide = Activations::new(&[0.0; 100], 100, Mode::N16);
        assert_eq!(wide, Err(OperandError::Width { found: 100 }));
        let mut x = vec![0.0; GROUP];
        x[5] = f32::NAN;
        let nan = Activations::new(&x, GROUP, Mode::N8);
        assert_eq!(nan, Err(OperandError::NonFinite { row: 0, at: 5 }));
        let nine = Activations::new(&vec![0.0; 9 * GROUP], GROUP, Mode::N8);
        assert_eq!(nine, Err(OperandError::Rows { found: 9 }));
        let code = Matrix::new(1, GROUP, vec![4; GROUP], vec![0]);
        assert_eq!(code, Err(OperandError::Range { what: "code", at: 0, found: 4 }));
    }
}
