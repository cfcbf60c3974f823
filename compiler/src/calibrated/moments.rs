//! Where a matrix's second moments come from: a calibration file, or the norms of the
//! drafter itself.
//!
//! The prior needs no data. An RMSNorm makes rows of equal size, so without knowing
//! more, inputs after one are independent with the squares of the norm's weights as
//! mean squares: in the rotated basis `H_ij = d_(i xor j)`, where `d` is the
//! Walsh-Hadamard transform of these squares over the block's width. Between a norm and
//! `q_proj`, `k_proj`, `v_proj`, `gate_proj` and `up_proj` lies a convolution of
//! neighbouring rows, which the prior leaves out. `fc`, `o_proj` and `down_proj` have no
//! norm before them.
//!
//! `k_proj` and `v_proj` see rows of the block and rows of the context. A block's row
//! is a key and a value for its round only, a context row for every round that sees it,
//! so the mean moments of both count as their rows were seen. The prior, which knows no
//! rounds, counts them alike.

use std::sync::Arc;

use formats::calib::{File, Input};
use formats::dflash2::drafter::{Buffer, Drafter};
use formats::dflash2::names::{Role, TensorSpec};
use formats::{GROUP, calib};

use super::hessian::MomentFault;
use crate::Error;

/// Where moments come from.
#[derive(Debug, Clone)]
pub enum Moments {
    /// The weights of the norms.
    Prior,
    /// Served rows.
    Captured(Arc<File>),
}

/// What is asked of a calibrated run.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// The moments.
    pub moments: Moments,
    /// Rounds of scales and codes at most; 0 for error feedback alone.
    pub rounds: usize,
    /// What is added to the diagonal, relative to its mean; none follows from the
    /// number of rows ([`damping`]).
    pub damping: Option<f64>,
}

impl Calibration {
    /// Rounds unless something else is asked for.
    pub const ROUNDS: usize = 8;

    /// The name of the method in reports and in the lineage of a GGUF.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.moments {
            Moments::Prior => "prior",
            Moments::Captured(_) => "calibrated",
        }
    }
}

/// The damping of moments of `samples` rows over `n` columns. Few rows fit noise, so
/// below n rows their moments count no more than equal squares of all columns; from
/// 2 n on a tenth of it is enough, and between the two it falls evenly in logarithm.
#[must_use]
pub fn damping(samples: u64, n: usize) -> f64 {
    let ratio = (samples as f64 / n as f64).clamp(1.0, 2.0);
    // 10^(1 - ratio) without a library's power: at most a tenth, by squared tenths.
    let steps = ((ratio - 1.0) * 8.0).round() as usize;
    (0..steps).fold(1.0, |value, _| value * EIGHTH_OF_TENTH)
}

/// 10^(-1/8).
const EIGHTH_OF_TENTH: f64 = 0.749_894_209_332_455_8;

/// What one or several matrices are multiplied with.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    pub(crate) parts: Vec<Part>,
    /// How much the mean moments of each part count; together 1.
    shares: Vec<f64>,
    /// Inputs of a row.
    pub(crate) width: usize,
    /// Rows behind the moments; none for the prior.
    pub(crate) samples: Option<u64>,
}

/// Rows of one kind.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// An input of the file.
    Input(Input),
    /// A norm, by the index of its tensor.
    Norm(usize),
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Input(a), Self::Input(b)) => a == b,
            (Self::Norm(a), Self::Norm(b)) => a == b,
            _ => false,
        }
    }
}

impl Feed {
    /// What feeds a matrix; none where the moments know nothing of it.
    ///
    /// # Errors
    /// A calibration file without the input, or of another width, or without rows.
    pub(crate) fn of(
        moments: &Moments,
        drafter: &Drafter,
        spec: &TensorSpec,
    ) -> Result<Option<Self>, Error> {
        let width = spec.inputs() as usize;
        let inputs = Input::of_matrix(spec.role, spec.layer);
        match moments {
            Moments::Prior => {
                let norms = norms_before(spec.role);
                let parts: Vec<Part> = norms
                    .iter()
                    .filter_map(|role| {
                        let layer = spec.layer.filter(|_| *role != Role::HiddenNorm);
                        drafter
                            .tensors
                            .iter()
                            .position(|t| t.spec.role == *role && t.spec.layer == layer)
                            .map(Part::Norm)
                    })
                    .collect();
                let shares = vec![1.0 / parts.len() as f64; parts.len()];
                Ok((!parts.is_empty()).then_some(Self { parts, shares, width, samples: None }))
            }
            Moments::Captured(file) => {
                let (mut samples, mut seen) = (0, Vec::new());
                for input in &inputs {
                    let record = file.input(*input)?;
                    if record.width != width {
                        return Err(refused(
                            file,
                            &format!("document.inputs.{input}.width"),
                            format!("{width}, the width of `{}`", spec.name),
                            record.width.to_string(),
                        ));
                    }
                    if record.rows == 0 || record.weight == 0 {
                        return Err(refused(
                            file,
                            &format!("document.inputs.{input}.rows"),
                            "at least one row of a weight above 0".into(),
                            record.rows.to_string(),
                        ));
                    }
                    samples += record.rows;
                    seen.push(match input {
                        Input::Context => record.rows.max(context_rows_seen(file)) as f64,
                        _ => record.rows as f64,
                    });
                }
                let parts = inputs.into_iter().map(Part::Input).collect();
                let all: f64 = seen.iter().sum();
                let shares = seen.into_iter().map(|seen| seen / all).collect();
                Ok(Some(Self { parts, shares, width, samples: Some(samples) }))
            }
        }
    }

    /// The names of its parts, for reports.
    pub(crate) fn names(&self, drafter: &Drafter) -> Vec<String> {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Input(input) => input.to_string(),
                Part::Norm(tensor) => drafter.tensors[*tensor].spec.name.clone(),
            })
            .collect()
    }

    /// Mean moments of the columns `unit * n ..`, `[n, n]`: blocks of `block` columns,
    /// one or, where groups are wider, several.
    ///
    /// # Errors
    /// What reading says.
    pub(crate) fn moments(
        &self,
        moments: &Moments,
        drafter: &Drafter,
        block: usize,
        n: usize,
        unit: usize,
    ) -> Result<Vec<f64>, Error> {
        let mut sum = vec![0.0; n * n];
        for i in 0..n / block {
            let index = unit * (n / block) + i;
            for (part, share) in self.parts.iter().zip(&self.shares) {
                let (values, factor) = match (part, moments) {
                    (Part::Input(input), Moments::Captured(file)) => {
                        let weight = file.input(*input)?.total_weight();
                        (file.block(*input, index)?, share / weight)
                    }
                    (Part::Norm(tensor), _) => (prior(drafter, *tensor, index, block)?, *share),
                    (Part::Input(_), Moments::Prior) => continue,
                };
                for (r, values) in values.chunks_exact(block).enumerate() {
                    let at = (i * block + r) * n + i * block;
                    for (sum, value) in sum[at..at + block].iter_mut().zip(values) {
                        *sum += factor * value;
                    }
                }
            }
        }
        Ok(sum)
    }

    /// What is wrong with moments, where they came from.
    pub(crate) fn fault(&self, moments: &Moments, drafter: &Drafter, fault: MomentFault) -> Error {
        let found = fault.to_string();
        match moments {
            Moments::Captured(file) => refused(
                file,
                &self.names(drafter).join(" + "),
                "finite moments with squares of at least 0".into(),
                found,
            ),
            Moments::Prior => Error::Input(formats::Error::Structure {
                path: drafter.path.clone(),
                part: self.names(drafter).join(" + "),
                expected: "finite weights".into(),
                found,
                hint: None,
            }),
        }
    }
}

/// Columns that are solved together: a block, or a group where that is wider.
pub(crate) fn unit_columns(block: usize) -> usize {
    block.max(GROUP)
}

/// Context rows that blocks saw, in all texts, each as often as it was seen.
fn context_rows_seen(file: &File) -> u64 {
    file.document().texts.iter().fold(0, |sum, texts| sum.saturating_add(texts.context_rows))
}

/// Norms whose outputs reach a matrix.
fn norms_before(role: Role) -> &'static [Role] {
    match role {
        Role::Q | Role::AttentionConvProjection => &[Role::InputNorm],
        Role::K | Role::V => &[Role::InputNorm, Role::HiddenNorm],
        Role::Gate | Role::Up | Role::MlpConvProjection => &[Role::PostAttentionNorm],
        Role::SelectorHidden => &[Role::FinalNorm],
        _ => &[],
    }
}

/// `R diag(gamma^2) R^T` of one block.
fn prior(
    drafter: &Drafter,
    norm: usize,
    index: usize,
    block: usize,
) -> Result<Vec<f64>, formats::Error> {
    let mut gamma = vec![0.0; block];
    let tensor = &drafter.tensors[norm];
    tensor.read_values((index * block) as u64, &mut gamma, &mut Buffer::default())?;
    let mut d: Vec<f64> =
        gamma.iter().map(|g| f64::from(*g) * f64::from(*g) / block as f64).collect();
    let mut stride = 1;
    while stride < block {
        for pair in d.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        stride *= 2;
    }
    Ok((0..block * block).map(|at| d[(at / block) ^ (at % block)]).collect())
}

/// Refuses a calibration file for its contents.
pub(crate) fn refused(file: &calib::File, key: &str, expected: String, found: String) -> Error {
    Error::Input(formats::Error::key(file.path(), key, expected, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damping_falls_from_one_to_a_tenth() {
        assert_eq!(damping(0, 1024), 1.0);
        assert_eq!(damping(1024, 1024), 1.0);
        assert!((damping(2048, 1024) - 0.1).abs() < 1e-12);
        assert_eq!(damping(2048, 1024), damping(u64::MAX, 1024));
        assert!((0..3000).is_sorted_by(|a, b| damping(*a, 1024) >= damping(*b, 1024)));
    }

    #[test]
    fn the_prior_is_the_rotated_diagonal() {
        let dir = tempfile::tempdir().unwrap();
        let path = crate::testing::write_drafter(dir.path(), 5, |_| {});
        let drafter = Drafter::open(&path, None).unwrap();
        let q = drafter.tensors.iter().find(|t| t.spec.role == Role::Q).unwrap();
        let feed = Feed::of(&Moments::Prior, &drafter, &q.spec).unwrap().unwrap();
        let n = 128;
        let h = feed.moments(&Moments::Prior, &drafter, n, n, 1).unwrap();
        let norm = drafter.tensors.iter().find(|t| t.spec.role == Role::InputNorm).unwrap();
        let mut gamma = vec![0.0; n];
        norm.read_values(n as u64, &mut gamma, &mut Buffer::default()).unwrap();
        let sign =
            |i: usize, c: usize| if (i & c).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        for (i, j) in [(0, 0), (3, 5), (127, 1), (64, 64)] {
            let expected: f64 = (0..n)
                .map(|c| sign(i, c) * sign(j, c) * f64::from(gamma[c]).powi(2) / n as f64)
                .sum();
            assert!((h[i * n + j] - expected).abs() < 1e-12);
        }
        let fc = drafter.tensors.iter().find(|t| t.spec.role == Role::Fc).unwrap();
        assert!(Feed::of(&Moments::Prior, &drafter, &fc.spec).unwrap().is_none());
    }
}
