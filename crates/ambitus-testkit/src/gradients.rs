//! Comparing gradients with those that a reference package gave.

use safetensors::SafeTensors;

/// Loss: relative error. The reference itself moves by 1e-7 between thread counts.
pub const LOSS: f64 = 1e-5;
/// A gradient: ‖Δ‖ over max(‖g‖, 1e-3 √(n/N) ‖all g‖), as some gradients are mathematically zero.
pub const GRADIENT: f64 = 1e-4;

/// Values by name, sorted; one of them is `loss`, and parts of it begin with that.
pub type Named = Vec<(String, Vec<f32>)>;

/// Returns whether this is the loss, or a part of it, and no gradient.
pub fn is_loss(name: &str) -> bool {
    name.split('.').next() == Some("loss")
}

/// Returns the tensors of a safetensors file of f32.
///
/// # Errors
/// Bytes that are no such file.
pub fn read(bytes: &[u8]) -> Result<Named, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let floats = |b: &[u8]| b.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let mut all: Named = file.tensors().into_iter().map(|(n, t)| (n, floats(t.data()))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// L2 norm.
pub fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

/// Returns the elements as f64.
pub fn values(x: &[f32]) -> impl Iterator<Item = f64> + '_ {
    x.iter().map(|v| f64::from(*v))
}

/// Errors as shares of what [`LOSS`] and `tolerance` (of gradients) allow, by name: nothing may be above 1. `Err` when the
/// names differ.
///
/// # Errors
/// Both lists of names.
pub fn errors(got: &Named, want: &Named, tolerance: f64) -> Result<Vec<(String, f64)>, String> {
    let names = |t: &Named| t.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    if names(got) != names(want) {
        return Err(format!("names differ: {:?}, not {:?}", names(got), names(want)));
    }
    let grads = || want.iter().filter(|(n, _)| !is_loss(n));
    let all = norm(grads().flat_map(|(_, g)| values(g)));
    let total: usize = grads().map(|(_, g)| g.len()).sum();
    type Pair<'a> = (&'a (String, Vec<f32>), &'a (String, Vec<f32>));
    let share = |((name, a), (_, b)): Pair<'_>| {
        let delta = norm(values(a).zip(values(b)).map(|(x, y)| x - y));
        let allowed = if is_loss(name) {
            LOSS * values(b).map(f64::abs).sum::<f64>()
        } else {
            let floor = 1e-3 * (b.len() as f64 / total as f64).sqrt() * all;
            tolerance * norm(values(b)).max(floor)
        };
        let share = delta / allowed;
        (name.clone(), if share.is_nan() { f64::INFINITY } else { share })
    };
    Ok(got.iter().zip(want).map(share).collect())
}

/// Returns the error of all gradients together, of lists with the same names: ‖Δ‖ over ‖g‖.
pub fn together(got: &Named, want: &Named) -> f64 {
    let gradients = |x: &Named| -> Vec<f32> {
        x.iter().filter(|(name, _)| !is_loss(name)).flat_map(|(_, g)| g.clone()).collect()
    };
    let (got, want) = (gradients(got), gradients(want));
    norm(values(&got).zip(values(&want)).map(|(x, y)| x - y)) / norm(values(&want))
}
