//! The best scales for given codes.
//!
//! With `t_g` the codes of group g of a row (zero elsewhere), the loss of a row is
//! `w H w^T - 2 s b + s A s^T`, with `A_gh = t_g H t_h^T` and `b_g = t_g H w^T`: a
//! quadratic with as many unknowns as there are groups. It is solved, rounded to the
//! grid, and improved group by group on the grid; of this and the old scales improved
//! in the same way the better is taken, so a loss never grows.

use formats::scale;

/// Rounds of group by group.
const SWEEPS: usize = 3;

/// Improves the `scales` of one row (values of the grid).
///
/// * `a`: `[n, n]` symmetric, as above; changed on the way
/// * `b`: `[n]`
pub(super) fn refit(a: &[f64], b: &[f64], scales: &mut [f64], work: &mut Vec<f64>) {
    let n = b.len();
    sweep(a, b, scales);
    let Some(exact) = solve(a, b, work) else { return };
    let mut rounded: Vec<f64> = (0..n).map(|g| on_grid(exact[g]).unwrap_or(scales[g])).collect();
    sweep(a, b, &mut rounded);
    if loss(a, b, &rounded) < loss(a, b, scales) {
        scales.copy_from_slice(&rounded);
    }
}

/// The value of the grid nearest to a scale that can be stored and does not turn the
/// group off.
fn on_grid(s: f64) -> Option<f64> {
    let near = if (0.0..scale::OVERFLOW).contains(&s) { scale::nearest(s) } else { 0.0 };
    (near > 0.0).then_some(near)
}

/// Each scale in turn becomes the best one on the grid for the others.
fn sweep(a: &[f64], b: &[f64], scales: &mut [f64]) {
    let n = b.len();
    for _ in 0..SWEEPS {
        let mut changed = false;
        for g in 0..n {
            let row = &a[g * n..(g + 1) * n];
            if row[g] <= 0.0 {
                continue;
            }
            let mut others = 0.0;
            for h in 0..n {
                if h != g {
                    others += row[h] * scales[h];
                }
            }
            // A parabola: the nearest value of the grid is the best.
            if let Some(best) = on_grid((b[g] - others) / row[g]) {
                changed |= best != scales[g];
                scales[g] = best;
            }
        }
        if !changed {
            break;
        }
    }
}

/// The part of the loss that depends on the scales.
fn loss(a: &[f64], b: &[f64], scales: &[f64]) -> f64 {
    let n = b.len();
    let mut sum = 0.0;
    for g in 0..n {
        let mut row = 0.0;
        for h in 0..n {
            row += a[g * n + h] * scales[h];
        }
        sum += scales[g] * (row - 2.0 * b[g]);
    }
    sum
}

/// The minimum over all real scales; none where the codes leave it open.
fn solve<'a>(a: &[f64], b: &[f64], work: &'a mut Vec<f64>) -> Option<&'a [f64]> {
    let n = b.len();
    work.clear();
    work.extend_from_slice(a);
    work.extend_from_slice(b);
    let (l, x) = work.split_at_mut(n * n);
    for j in 0..n {
        for i in j..n {
            let mut sum = l[i * n + j];
            for k in 0..j {
                sum -= l[i * n + k] * l[j * n + k];
            }
            if i == j {
                if sum <= 1e-9 * a[j * n + j] {
                    return None;
                }
                l[i * n + j] = sum.sqrt();
            } else {
                l[i * n + j] = sum / l[j * n + j];
            }
        }
    }
    for i in 0..n {
        for k in 0..i {
            x[i] -= l[i * n + k] * x[k];
        }
        x[i] /= l[i * n + i];
    }
    for i in (0..n).rev() {
        for k in i + 1..n {
            x[i] -= l[k * n + i] * x[k];
        }
        x[i] /= l[i * n + i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_loss_never_grows_and_ends_near_the_minimum(n in 1usize..9, seed in any::<u64>()) {
            let mut next = crate::testing::uniform(seed);
            let x: Vec<f64> = (0..n * 2 * n).map(|_| next()).collect();
            let dot = |g: usize, h: usize| -> f64 {
                (0..2 * n).map(|k| x[g * 2 * n + k] * x[h * 2 * n + k]).sum()
            };
            let a: Vec<f64> = (0..n * n).map(|i| dot(i / n, i % n)).collect();
            let target: Vec<f64> = (0..n).map(|_| 0.5 + next().abs()).collect();
            let b: Vec<f64> =
                (0..n).map(|g| (0..n).map(|h| a[g * n + h] * target[h]).sum()).collect();
            let mut scales: Vec<f64> = (0..n).map(|_| scale::nearest(0.1 + next().abs())).collect();
            let before = loss(&a, &b, &scales);
            refit(&a, &b, &mut scales, &mut Vec::new());
            let (after, best) = (loss(&a, &b, &scales), loss(&a, &b, &target));
            prop_assert!(after <= before);
            let rounding: f64 = (0..n).map(|g| a[g * n + g]).sum::<f64>() * 2e-4;
            prop_assert!(after <= best + rounding, "{after} {best}");
            prop_assert!(scales.iter().all(|s| scale::nearest(*s) == *s && *s > 0.0));
        }
    }

    #[test]
    fn a_group_without_codes_keeps_its_scale() {
        let mut scales = [0.5, 0.25];
        refit(&[4.0, 0.0, 0.0, 0.0], &[4.0, 0.0], &mut scales, &mut Vec::new());
        assert_eq!(scales, [1.0, 0.25]);
    }
}
