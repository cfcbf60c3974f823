//! Reading calibration data, tile by tile.

use std::path::Path;

use super::writer::{DOCUMENT, DOCUMENT_SHA256, FORMAT_KEY, tensor_of, tensors};
use super::{Document, FORMAT, Input, InputRecord, Tile, power_of_two};
use crate::digest::sha256;
use crate::error::shown;
use crate::{Error, Fault, Source, safetensors};

/// An opened calibration file: its document, and where the tiles are. Contents are checked as they are
/// read, in any order and from any thread.
#[derive(Debug, Clone)]
pub struct File {
    inner: safetensors::File,
    document: Document,
}

impl File {
    /// Opens the file at `path`; reads its header only.
    ///
    /// # Errors
    /// What [`safetensors::File::open`] says; [`Error::Key`] when the metadata is not that of
    /// calibration data, was damaged, or is impossible; [`Error::Names`] and [`Error::Tensor`] when
    /// the tensors are not those of the document.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::read(Source::open(path)?)
    }

    /// [`File::open`] of bytes that are there.
    ///
    /// # Errors
    /// As [`File::open`].
    pub fn read(source: Source) -> Result<Self, Error> {
        let inner = safetensors::File::open(source)?;
        let path = inner.source().path();
        let key = |key: &str, expected: &str, found: String, hint: Option<&str>| Error::Key {
            path: path.to_path_buf(),
            key: key.into(),
            expected: expected.into(),
            found,
            hint: hint.map(Into::into),
        };
        let get = |name: &str| inner.metadata().get(name).map(String::as_str);
        let format = get(FORMAT_KEY).unwrap_or("nothing");
        if format != FORMAT {
            let hint = Some("calibration data are made by `drafter capture`");
            return Err(key(FORMAT_KEY, FORMAT, shown(format), hint));
        }
        let text = get(DOCUMENT).unwrap_or_default();
        let found = sha256(text);
        let stated = get(DOCUMENT_SHA256).unwrap_or("nothing");
        if stated != found {
            let expected = format!("the document's, {found}");
            let hint = Some("the file was damaged; capture it again");
            return Err(key(DOCUMENT_SHA256, &expected, shown(stated), hint));
        }
        let document = Document::parse(path, text)?;
        let expected = tensors(&document);
        for tensor in &expected {
            let Some(found) = inner.get(&tensor.name) else {
                return Err(names(path, "missing tensors", vec![tensor.name.clone()]));
            };
            if (found.dtype, &found.shape) != (tensor.dtype, &tensor.shape) {
                return Err(Error::Tensor {
                    path: path.to_path_buf(),
                    tensor: tensor.name.clone(),
                    expected: format!("{} {:?}", tensor.dtype, tensor.shape),
                    found: format!("{} of {} dimensions", found.dtype, found.shape.len()),
                    hint: None,
                });
            }
        }
        if inner.tensors().len() != expected.len() {
            let known = |name: &str| expected.iter().any(|tensor| tensor.name == name);
            let others = inner.tensors().iter().filter(|t| !known(&t.name));
            let others = others.take(8).map(|t| shown(&t.name)).collect();
            return Err(names(path, "tensors that the document does not name", others));
        }
        Ok(Self { inner, document })
    }

    /// The path that was asked for.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inner.source().path()
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.source().len()
    }

    /// Never: there is a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What is known beside the moments.
    #[must_use]
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// What is known of one input.
    ///
    /// # Errors
    /// [`Error::Names`] when the file has no such input: it is that of a drafter with fewer layers.
    pub fn input(&self, input: Input) -> Result<&InputRecord, Error> {
        let name = input.to_string();
        let record = self.document.inputs.get(&name);
        record.ok_or_else(|| names(self.path(), "missing inputs", vec![name]))
    }

    /// Refuses data of another drafter.
    ///
    /// # Errors
    /// [`Error::Key`] when `sha256` is not that of the drafter that was run.
    pub fn check_drafter(&self, sha256: &str) -> Result<(), Error> {
        let found = &self.document.models.drafter_sha256;
        if found == sha256 {
            return Ok(());
        }
        Err(Error::Key {
            path: self.path().to_path_buf(),
            key: "document.models.drafter_sha256".into(),
            expected: format!("{sha256}, that of this drafter"),
            found: found.clone(),
            hint: Some("calibration data fit the drafter they were captured with only".into()),
        })
    }

    /// Reads a tile's integers, in the order of [`Tile`].
    ///
    /// # Errors
    /// [`Error::Contents`] when the tile is not what was written, or no sum of squares; what the
    /// system says.
    ///
    /// # Panics
    /// If the input has no such tile.
    pub fn units(&self, input: Input, tile: Tile) -> Result<Vec<i64>, Error> {
        let record = self.input(input)?;
        let block = self.document.models.block;
        let number = record.tiles(block).position(|other| other == tile);
        #[expect(clippy::expect_used, reason = "stated panic")]
        let number = number.expect("a tile of the input");
        let (name, place) = tensor_of(input, tile, record.width / block);
        #[expect(clippy::expect_used, reason = "opening checks that all are there")]
        let tensor = self.inner.get(&name).expect("an opened file");
        let len = 8 * tile.len(block) as u64;
        let bytes = self.inner.source().read_vec(tensor.offset + place as u64 * len, len)?;
        let fault = |expected: &str, found: String| {
            let (expected, index) = (expected.into(), place as u64);
            Fault { unit: "tile", index, expected, found }.at(self.path(), &name)
        };
        let found = sha256(&bytes);
        if found != record.sha256[number] {
            let found = format!("{found}; the file was damaged");
            return Err(fault(&format!("SHA-256 {}", record.sha256[number]), found));
        }
        let values: Vec<i64> =
            bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        if matches!(tile, Tile::Diagonal(_)) {
            let mut at = 0;
            for i in 0..block {
                if values[at] < 0 {
                    return Err(fault("sums of squares", format!("{} at {i}", values[at])));
                }
                at += block - i;
            }
        }
        Ok(values)
    }

    /// `Σ w x' x'ᵀ` of one rotation block of an input: the tile at `(i, i)`, `[block, block]`
    /// row-major, whole and symmetric. Divide by [`InputRecord::total_weight`] for the mean.
    ///
    /// # Errors
    /// As [`File::units`].
    ///
    /// # Panics
    /// If the input has no such block.
    pub fn block(&self, input: Input, i: usize) -> Result<Vec<f64>, Error> {
        let block = self.document.models.block;
        let unit = power_of_two(self.input(input)?.exponent);
        let units = self.units(input, Tile::Diagonal(i))?;
        let mut out = vec![0.0; block * block];
        let mut values = units.iter();
        for r in 0..block {
            for (c, value) in (r..block).zip(values.by_ref()) {
                let value = *value as f64 * unit;
                out[r * block + c] = value;
                out[c * block + r] = value;
            }
        }
        Ok(out)
    }

    /// The tile at `(i, j)`, `i < j`, `[block, block]` row-major; nothing where only the diagonal was
    /// captured. The one at `(j, i)` is its transpose.
    ///
    /// # Errors
    /// As [`File::units`].
    ///
    /// # Panics
    /// As [`File::units`].
    pub fn pair(&self, input: Input, i: usize, j: usize) -> Result<Option<Vec<f64>>, Error> {
        let record = self.input(input)?;
        if !record.full {
            return Ok(None);
        }
        let unit = power_of_two(record.exponent);
        let units = self.units(input, Tile::Pair(i, j))?;
        Ok(Some(units.into_iter().map(|value| value as f64 * unit).collect()))
    }
}

fn names(path: &Path, problem: &str, names: Vec<String>) -> Error {
    Error::Names { path: path.to_path_buf(), problem: problem.into(), names, hint: None }
}
