//! The matrices of a model as a pack: what a [`PackCache`](crate::pack_cache::PackCache) stores.

use std::sync::{Arc, Mutex, PoisonError};

use super::layout::{self, BAND};
use super::{Dot, Packed};
use crate::Error;
use crate::backend::{Backend, Prepared};
use crate::pack_cache::{Pack, Packable, PackedBytes, Section};
use crate::quant::Activations;
use crate::weights::TernaryMatrix;

/// The order of [`layout`], whatever instruction multiplies. A change of the order is a new number.
const KIND: &str = "cpu-tiles/1";

/// The [`Cpu`](super::Cpu) backend for one model, which remembers the model's matrices.
#[derive(Debug)]
pub struct ModelOnCpu {
    dot: Dot,
    matrices: Mutex<Vec<Arc<Packed>>>,
}

impl ModelOnCpu {
    /// A backend that multiplies with `dot`.
    #[must_use]
    pub fn new(dot: Dot) -> Self {
        Self { dot, matrices: Mutex::default() }
    }

    /// The matrices that were taken over until now. They get the bytes of a pack that
    /// [`attach`](crate::pack_cache::PackCache::attach)es it, if they were not multiplied before.
    #[must_use]
    pub fn pack(&self) -> Pack {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let items = matrices.iter().map(|matrix| Arc::clone(matrix) as Arc<dyn Packable>);
        Pack { kind: KIND, items: items.collect(), read_in_place: true }
    }
}

impl Backend for ModelOnCpu {
    fn prepare(&self, matrix: TernaryMatrix) -> Result<Box<dyn Prepared>, Error> {
        let packed = Arc::new(Packed::new(matrix, self.dot));
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.push(Arc::clone(&packed));
        Ok(Box::new(packed))
    }
}

impl Prepared for Arc<Packed> {
    fn matmul(&self, x: &Activations, out: &mut [f32]) -> Result<(), Error> {
        Packed::matmul(self, x, out)
    }
}

impl Packable for Packed {
    fn section(&self) -> Section {
        let (n, width) = (self.matrix.out_features(), self.matrix.in_features());
        let bytes = layout::packed_bytes(n, width) as u64;
        Section::new(self.matrix.name(), [n, width], bytes)
    }

    fn part_bytes(&self) -> usize {
        layout::packed_bytes(BAND, self.matrix.in_features())
    }

    fn pack(&self, part: usize, out: &mut [u8]) -> Result<(), Error> {
        layout::pack_band(&self.matrix, part, out)
    }

    fn will_pack(&self) {
        self.matrix.will_need();
    }

    fn packed(&self) {
        self.matrix.release();
    }

    fn take(&self, bytes: PackedBytes) {
        // Bytes that were packed before are the same ones.
        let _ = self.bytes.set(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Reference;
    use crate::pack_cache::{PackCache, SourceFile};
    use crate::quant::ActQuant;
    use crate::rotation::Rotation;
    use crate::rows::Rows;
    use crate::weights::TernaryEncoding;
    use formats::{GROUP, Source, TernaryRows, pq2_0};
    use hadamard::Isa;
    use half::f16;
    use std::ops::ControlFlow;

    fn matrix(n: usize, groups: usize, seed: u32) -> TernaryMatrix {
        let cols = groups * GROUP;
        let random = |i: usize| (i as u32 ^ seed).wrapping_mul(2_654_435_761).rotate_left(15);
        let mut rows = TernaryRows::zeroed(n, cols);
        for r in 0..n {
            (0..cols).for_each(|k| rows.set_code(r, k, (random(r * cols + k) & 3) as u8));
            (0..groups).for_each(|g| {
                let bits = random(r * groups + g) as u16 & 0x3FFF;
                rows.set_scale(r, g, f16::from_bits(bits));
            });
        }
        let mut bytes = vec![0; n * pq2_0::row_bytes(cols)];
        pq2_0::encode(&rows, &mut bytes);
        let source = Source::from_bytes("w", bytes);
        let view = source.view(0, source.len()).unwrap();
        TernaryMatrix::new(view, TernaryEncoding::Pq2_0, n, cols, "w", &format!("m{n}"))
    }

    /// Matrices whose bytes come from a pack give the bits of the reference, in every arithmetic.
    #[test]
    fn packed_bytes_of_a_file_are_those_of_memory() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::write(&model, "model").unwrap();
        let cache = PackCache::in_dir(dir.path().join("packs"));
        for expected in ["Made", "Found"] {
            for dot in Dot::available(Isa::detect()) {
                let backend = ModelOnCpu::new(dot);
                let shapes = [(70, 3), (16, 2), (129, 8)];
                let matrices = shapes.map(|(n, groups)| matrix(n, groups, n as u32));
                let prepared = matrices.clone().map(|matrix| backend.prepare(matrix).unwrap());
                let sources = vec![SourceFile::now(&model).unwrap()];
                let attached = cache
                    .attach(&backend.pack(), sources, &mut |_| ControlFlow::Continue(()))
                    .unwrap();
                let first = dot == Dot::available(Isa::detect())[0];
                let expected = if first { expected } else { "Found" };
                assert_eq!(format!("{attached:?}"), expected);
                for (matrix, prepared) in matrices.iter().zip(&prepared) {
                    let (width, out) = (matrix.in_features(), matrix.out_features());
                    let values =
                        (0..3 * width).map(|i| (i * 7919 % 2001) as f32 - 1000.0).collect();
                    let rotation =
                        Rotation::new(128, [(width, vec![1; width])].into(), Isa::detect());
                    let rows = rotation.unwrap().rotate(&Rows::from_vec(width, values)).unwrap();
                    for act in [ActQuant::A8, ActQuant::A16, ActQuant::F32] {
                        let x = Activations::new(&rows, act).unwrap();
                        let (mut found, mut plain) = (vec![0.0; 3 * out], vec![0.0; 3 * out]);
                        prepared.matmul(&x, &mut found).unwrap();
                        let reference = Reference.prepare(matrix.clone()).unwrap();
                        reference.matmul(&x, &mut plain).unwrap();
                        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                        assert_eq!(bits(&found), bits(&plain));
                    }
                }
            }
        }
        assert_eq!(cache.entries().unwrap().len(), 1);
    }
}
