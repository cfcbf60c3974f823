//! Checks of shapes, with messages that say which axis is wrong.

use std::path::Path;

use super::{Codebooks, TensorSpec, specs};
use crate::dflash2::config::Config;
use crate::{Error, GROUP};

/// Compares the shape of a tensor in a file with that of the model.
///
/// # Errors
/// [`Error::Tensor`] with both shapes and the axis that differs.
pub fn check_shape(path: &Path, spec: &TensorSpec, found: &[u64]) -> Result<(), Error> {
    if spec.shape == found {
        return Ok(());
    }
    let axes = axes(&spec.shape);
    let differs = spec
        .shape
        .iter()
        .zip(found)
        .position(|(a, b)| a != b)
        .filter(|_| spec.shape.len() == found.len());
    let hint = match differs {
        _ if spec.shape.iter().rev().eq(found) => Some("the tensor is transposed".into()),
        Some(i) => Some(format!(
            "the {} axis differs: {} in the model, {} in the file",
            axes[i], spec.shape[i], found[i]
        )),
        None => None,
    };
    Err(Error::Tensor {
        path: path.to_path_buf(),
        tensor: spec.name.clone(),
        expected: format!("shape [{}] = {:?}", axes.join(", "), spec.shape),
        found: format!("{found:?}"),
        hint,
    })
}

fn axes(shape: &[u64]) -> &'static [&'static str] {
    match shape.len() {
        1 => &["width"],
        2 => &["out", "in"],
        _ => &["side", "tap", "channel"],
    }
}

/// Checks that the inputs of every ternary matrix divide into transforms of
/// `block` values and into groups that share a scale.
///
/// # Errors
/// [`Error::Tensor`] naming the first matrix that does not divide; the hint
/// names the largest block that divides all of them.
pub fn check_block(path: &Path, config: &Config, block: usize) -> Result<(), Error> {
    let widths = config.matrix_widths();
    let bad =
        |width: u64| !(width.is_multiple_of(GROUP as u64) && width.is_multiple_of(block as u64));
    let Some(spec) = specs(config, Codebooks::Bare)
        .into_iter()
        .find(|spec| spec.role.is_matrix() && bad(spec.inputs()))
    else {
        return Ok(());
    };
    let zeros = widths.iter().map(|w| w.trailing_zeros()).min().unwrap_or(0);
    let largest = 1usize << zeros;
    Err(Error::Tensor {
        path: path.to_path_buf(),
        tensor: spec.name.clone(),
        expected: format!(
            "an in axis that is a multiple of {block} (rotation block) and of {GROUP} (scale group)"
        ),
        found: format!("shape [out, in] = {:?}", spec.shape),
        hint: Some(if largest < GROUP {
            format!("the widths of this drafter divide by {largest} at most: it cannot be ternary")
        } else {
            format!("the largest rotation block that divides every matrix is {largest}")
        }),
    })
}
