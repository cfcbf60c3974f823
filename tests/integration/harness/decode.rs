//! What a written file says, read through the library.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use formats::TernaryRows;
use formats::dflash2::drafter::{Buffer, Drafter, Tensor};

use super::dims;

/// Every matrix of a ternary drafter, by published name.
pub(crate) fn decode(path: &Path) -> BTreeMap<String, TernaryRows> {
    let drafter = Drafter::open(path, None).unwrap();
    let matrices = drafter.tensors.iter().filter(|t| t.spec.role.is_matrix());
    matrices
        .map(|tensor| {
            let [out, inputs] = dims(&tensor.spec);
            let mut rows = TernaryRows::zeroed(out, inputs);
            tensor.read_rows(0, &mut rows, &mut Buffer::default()).unwrap();
            (tensor.spec.name.clone(), rows)
        })
        .collect()
}

/// Offset in its file of PQ2_0 block `group` of the matrix `name`.
pub(crate) fn group_of(path: &Path, name: &str, group: u64) -> u64 {
    let drafter = Drafter::open(path, None).unwrap();
    let tensor: &Tensor = drafter.tensors.iter().find(|t| t.spec.name == name).unwrap();
    tensor.offset() + group * formats::pq2_0::BLOCK_BYTES as u64
}

/// Overwrites bytes of a file.
pub(crate) fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}
