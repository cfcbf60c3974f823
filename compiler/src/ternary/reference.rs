//! The three rules in scalar code: what every faster path must equal.

use formats::GROUP;
use formats::scale;
use half::f16;

use super::{Choice, GroupFault, Stats};

/// Which weights of a group are non-zero, and the choice behind it.
pub(super) type Support = [bool; GROUP];

/// Applies one rule to every group. A rule returns its choice and the support.
pub(super) fn groups(
    rule: impl Fn(&[f32; GROUP]) -> (Choice, Support),
    values: &[f32],
    codes: &mut [u8],
    scales: &mut [f16],
    stats: &mut Stats,
) -> Result<(), GroupFault> {
    let (values, _) = values.as_chunks::<GROUP>();
    let (codes, _) = codes.as_chunks_mut::<{ GROUP / 4 }>();
    for (group, ((w, codes), scale)) in values.iter().zip(codes).zip(scales).enumerate() {
        *scale = one_group(&rule, group, w, codes, stats)?;
    }
    Ok(())
}

/// One group through one rule: writes its codes, counts it, returns its scale.
pub(super) fn one_group(
    rule: impl Fn(&[f32; GROUP]) -> (Choice, Support),
    group: usize,
    w: &[f32; GROUP],
    codes: &mut [u8; GROUP / 4],
    stats: &mut Stats,
) -> Result<f16, GroupFault> {
    if w.iter().any(|w| !w.is_finite()) {
        return Err(GroupFault::NotFinite { group });
    }
    let (choice, support) = rule(w);
    let Some(stored) = scale::round_to_grid(choice.scale) else {
        return Err(GroupFault::Overflow { group, scale: choice.scale });
    };
    write_codes(w, &support, codes);
    stats.add(choice, stored);
    Ok(stored)
}

/// The least-squares optimum on the scale grid (module documentation of `ternary`).
pub(super) fn optimal(w: &[f32; GROUP]) -> (Choice, Support) {
    let mut order: [usize; GROUP] = std::array::from_fn(|i| i);
    // Stable, so equal magnitudes stay in the order of their indices.
    order.sort_by(|&a, &b| w[b].abs().total_cmp(&w[a].abs()));

    let mut energy = 0.0;
    let mut sum = 0.0;
    let mut best = Choice { scale: 0.0, support: 0, sum: 0.0, energy: 0.0 };
    let mut best_value = 0.0;
    for (i, &index) in order.iter().enumerate() {
        let magnitude = f64::from(w[index].abs());
        sum += magnitude;
        energy += magnitude * magnitude;
        let (scale, value) = candidate(sum, i + 1);
        if value < best_value {
            best_value = value;
            best = Choice { scale, support: i + 1, sum, energy: 0.0 };
        }
    }
    best.energy = energy;
    let mut support = [false; GROUP];
    for &index in &order[..best.support] {
        support[index] = true;
    }
    (best, support)
}

/// Scale on the grid and objective for a support of `k` weights with |w| summing to `sum`.
///
/// The scale's square has 16 significant bits and `k` has 8, so only the last
/// product and the difference round.
#[inline]
pub(super) fn candidate(sum: f64, k: usize) -> (f64, f64) {
    let k = k as f64;
    let scale = scale::nearest(sum / k);
    (scale, k * scale * scale - 2.0 * scale * sum)
}

/// BitNet's rule: the threshold is half the unrounded mean.
pub(super) fn absmean(w: &[f32; GROUP]) -> (Choice, Support) {
    let (mean, energy) = mean_and_energy(w);
    fit(w, energy, Some(mean), |magnitude| mean > 0.0 && 2.0 * magnitude >= mean)
}

/// TWN's rule: support above 0.7 of the mean, scale by least squares on it.
pub(super) fn twn(w: &[f32; GROUP]) -> (Choice, Support) {
    let (mean, energy) = mean_and_energy(w);
    fit(w, energy, None, |magnitude| magnitude > 0.7 * mean)
}

fn mean_and_energy(w: &[f32; GROUP]) -> (f64, f64) {
    let mut sum = 0.0;
    let mut energy = 0.0;
    for w in w {
        let magnitude = f64::from(w.abs());
        sum += magnitude;
        energy += magnitude * magnitude;
    }
    (sum / GROUP as f64, energy)
}

/// The support that `inside` accepts, with the given scale or else the support's mean.
fn fit(
    w: &[f32; GROUP],
    energy: f64,
    scale: Option<f64>,
    inside: impl Fn(f64) -> bool,
) -> (Choice, Support) {
    let support: Support = std::array::from_fn(|i| inside(f64::from(w[i].abs())));
    let mut sum = 0.0;
    let mut n = 0;
    for (w, inside) in w.iter().zip(support) {
        if inside {
            sum += f64::from(w.abs());
            n += 1;
        }
    }
    let mean = if n == 0 { 0.0 } else { sum / f64::from(n) };
    let scale = scale::nearest(scale.unwrap_or(mean));
    if scale == 0.0 {
        // An underflown scale stores zero codes.
        return (Choice { scale, support: 0, sum: 0.0, energy }, [false; GROUP]);
    }
    (Choice { scale, support: n as usize, sum, energy }, support)
}

/// Codes of one group: `sign + 1` on the support, 1 elsewhere.
pub(super) fn write_codes(w: &[f32; GROUP], support: &Support, codes: &mut [u8; GROUP / 4]) {
    for (byte, (w, inside)) in
        codes.iter_mut().zip(w.as_chunks::<4>().0.iter().zip(support.as_chunks::<4>().0))
    {
        *byte = 0;
        for j in 0..4 {
            let code: u8 = match inside[j] {
                true if w[j] > 0.0 => 2,
                true if w[j] < 0.0 => 0,
                _ => 1,
            };
            *byte |= code << (2 * j);
        }
    }
}
