//! Tensors of a target by name and shape, as matrices and vectors, whatever holds them.

use formats::gguf::{File, GgmlType, TensorInfo};
use formats::{Error, View};

use super::config::Config;
use crate::backend::Backend;
use crate::linear::Linear;
use crate::weights::{FloatEncoding, FloatMatrix, TernaryEncoding, TernaryMatrix};

/// A matrix in its file.
pub(super) enum Stored {
    Ternary(TernaryMatrix),
    Float(FloatMatrix),
}

impl Stored {
    /// The matrix with its input basis; ternary ones are rotated, see the keys' rules.
    pub(super) fn linear(
        self,
        rotated: bool,
        backend: &dyn Backend,
    ) -> Result<Linear, crate::Error> {
        match self {
            Self::Ternary(matrix) => Linear::ternary(matrix, backend),
            Self::Float(matrix) => Ok(Linear::float(matrix, rotated)),
        }
    }
}

pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";

/// What a tensor may be stored as, for messages.
const READABLE: &str = "F32, F16, BF16, Q8_0, PQ2_0 or PTQ1_0";

/// Where the tensors of a model are. Names are those of a GGUF.
pub(super) trait Tensors {
    /// The matrix `name` of `[out, inputs]`.
    fn matrix(&self, name: &str, out: usize, inputs: usize) -> Result<Stored, Error>;

    /// All values of the float tensor `name` with these dimensions, fastest first.
    fn values(&self, name: &str, dims: &[usize]) -> Result<Vec<f32>, Error>;

    /// Rows of the embedding.
    fn vocab(&self) -> usize;

    /// Whether the embedding is the head as well.
    fn tied(&self) -> bool;
}

pub(super) struct GgufTensors<'a> {
    pub(super) file: &'a File,
}

impl Tensors for GgufTensors<'_> {
    fn matrix(&self, name: &str, out: usize, inputs: usize) -> Result<Stored, Error> {
        let info = self.find(name, &[inputs as u64, out as u64])?;
        let view = self.view(info)?;
        if let Some(encoding) = ternary(info.ty) {
            // A row is whole blocks, or the reader of the file would have refused it.
            debug_assert!(Config::is_ternary_width(inputs as u64));
            let path = formats::shown_path(self.file.source().path());
            let matrix = TernaryMatrix::new(view, encoding, out, inputs, &path, name);
            return Ok(Stored::Ternary(matrix));
        }
        let encoding = float(info.ty).ok_or_else(|| self.unreadable(info))?;
        Ok(Stored::Float(FloatMatrix::new(view, encoding, out, inputs)))
    }

    fn values(&self, name: &str, dims: &[usize]) -> Result<Vec<f32>, Error> {
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        let info = self.find(name, &dims)?;
        let encoding = float(info.ty).ok_or_else(|| self.unreadable(info))?;
        let n = dims.iter().product::<u64>() as usize;
        let mut values = vec![0.0; n];
        FloatMatrix::new(self.view(info)?, encoding, 1, n).dequantize_row(0, &mut values);
        Ok(values)
    }

    fn vocab(&self) -> usize {
        self.file.tensor(EMBEDDING).and_then(|t| t.dims.get(1)).map_or(1, |rows| *rows as usize)
    }

    fn tied(&self) -> bool {
        self.file.tensor(HEAD).is_none()
    }
}

impl GgufTensors<'_> {
    fn find(&self, name: &str, dims: &[u64]) -> Result<&TensorInfo, Error> {
        let Some(info) = self.file.tensor(name) else {
            return Err(Error::Names {
                path: self.file.source().path().to_path_buf(),
                problem: "missing tensors".into(),
                names: vec![name.into()],
                hint: None,
            });
        };
        if info.dims != dims {
            return Err(self.fault(info, format!("{dims:?}"), format!("{:?}", info.dims)));
        }
        Ok(info)
    }

    fn view(&self, info: &TensorInfo) -> Result<View, Error> {
        self.file.source().view(info.offset, info.len)
    }

    fn unreadable(&self, info: &TensorInfo) -> Error {
        self.fault(info, READABLE.into(), info.ty.name().into())
    }

    fn fault(&self, info: &TensorInfo, expected: String, found: String) -> Error {
        Error::Tensor {
            path: self.file.source().path().to_path_buf(),
            tensor: info.name.clone(),
            expected,
            found,
            hint: None,
        }
    }
}

fn ternary(ty: GgmlType) -> Option<TernaryEncoding> {
    match ty {
        GgmlType::PQ2_0 => Some(TernaryEncoding::Pq2_0),
        GgmlType::PTQ1_0 => Some(TernaryEncoding::Ptq1_0),
        _ => None,
    }
}

fn float(ty: GgmlType) -> Option<FloatEncoding> {
    match ty {
        GgmlType::F32 => Some(FloatEncoding::F32),
        GgmlType::F16 => Some(FloatEncoding::F16),
        GgmlType::BF16 => Some(FloatEncoding::Bf16),
        GgmlType::Q8_0 => Some(FloatEncoding::Q8_0),
        _ => None,
    }
}
