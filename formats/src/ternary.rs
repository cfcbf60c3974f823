//! Rows of a ternary matrix in memory, the form all codecs meet in.
//!
//! A weight is `scale * (code - 1)`: `code` is one of 0, 1, 2 (3 = `+2` exists
//! in PQ2_0 by its decode rule only), and one scale serves [`GROUP`] weights
//! along the input dimension. Codes are held as the PQ2_0 block holds them:
//! value `k` of a row in byte `k / 4`, bits `2 * (k % 4)`; scales row-major.

use half::f16;

/// Weights that share one scale.
pub const GROUP: usize = 128;

/// `rows` rows of `cols` ternary weights; `cols` is a multiple of [`GROUP`].
#[derive(Debug, Clone, PartialEq)]
pub struct TernaryRows {
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<f16>,
}

impl TernaryRows {
    /// All weights zero: code 1 (the value 0), scale +0.
    ///
    /// # Panics
    /// If `cols` is no multiple of [`GROUP`]; shapes are checked where files are read.
    #[must_use]
    pub fn zeroed(rows: usize, cols: usize) -> Self {
        assert_eq!(cols % GROUP, 0, "a ternary row is whole groups of {GROUP}");
        Self {
            rows,
            cols,
            codes: vec![0b0101_0101; rows * cols / 4],
            scales: vec![f16::ZERO; rows * cols / GROUP],
        }
    }

    /// Number of rows (outputs).
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns (inputs).
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Groups per row.
    #[must_use]
    pub fn groups_per_row(&self) -> usize {
        self.cols / GROUP
    }

    /// All code bytes, row-major, `cols / 4` per row.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// All scales, row-major, `cols / GROUP` per row.
    #[must_use]
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    /// Code bytes and scales, to be filled.
    #[must_use]
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut [f16]) {
        (&mut self.codes, &mut self.scales)
    }

    /// Code bytes of row `r`.
    #[must_use]
    pub fn row_codes(&self, r: usize) -> &[u8] {
        let n = self.cols / 4;
        &self.codes[r * n..(r + 1) * n]
    }

    /// Scales of row `r`.
    #[must_use]
    pub fn row_scales(&self, r: usize) -> &[f16] {
        let n = self.groups_per_row();
        &self.scales[r * n..(r + 1) * n]
    }

    /// The code (0..=3) at row `r`, column `k`.
    #[must_use]
    pub fn code(&self, r: usize, k: usize) -> u8 {
        (self.row_codes(r)[k / 4] >> (2 * (k % 4))) & 3
    }

    /// Sets the code at row `r`, column `k`; only the low two bits of `code` count.
    pub fn set_code(&mut self, r: usize, k: usize, code: u8) {
        let byte = &mut self.codes[r * (self.cols / 4) + k / 4];
        let shift = 2 * (k % 4);
        *byte = (*byte & !(3 << shift)) | ((code & 3) << shift);
    }

    /// Sets the scale of row `r`, group `g`.
    pub fn set_scale(&mut self, r: usize, g: usize, scale: f16) {
        let n = self.groups_per_row();
        self.scales[r * n + g] = scale;
    }

    /// Writes the weights of row `r`: `out` is `[cols]` f32, in the basis the
    /// codes are in.
    ///
    /// # Panics
    /// If `out` is not `cols` long.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols);
        let codes = self.row_codes(r);
        for (g, (scale, out)) in
            self.row_scales(r).iter().zip(out.chunks_exact_mut(GROUP)).enumerate()
        {
            let scale = scale.to_f32();
            let codes = &codes[g * GROUP / 4..(g + 1) * GROUP / 4];
            for (byte, out) in codes.iter().zip(out.chunks_exact_mut(4)) {
                for (j, out) in out.iter_mut().enumerate() {
                    *out = scale * (f32::from((byte >> (2 * j)) & 3) - 1.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_scales_land_where_they_are_read() {
        let mut rows = TernaryRows::zeroed(3, 256);
        rows.set_code(1, 130, 2);
        rows.set_code(1, 131, 0);
        rows.set_scale(1, 1, f16::from_f32(0.5));
        let mut out = vec![9.0; 256];
        rows.dequantize_row(1, &mut out);
        assert_eq!((out[129], out[130], out[131]), (0.0, 0.5, -0.5));
        assert_eq!(rows.code(1, 130), 2);
        assert_eq!(rows.code(2, 130), 1);
    }
}
