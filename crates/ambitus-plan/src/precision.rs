//! What a run computes in where its recipe does not say: in 16 bits on a GPU with tensor cores, else in fp32.

use crate::device::Device;
use ambitus_models::Model;
use ambitus_recipe::recipe::{Level, Precision, Settled};

/// Returns the 16-bit precision of activations that a run may have on a device.
///
/// # Errors
/// Why it can have none, to be read after its name.
pub fn half(recipe: &Settled, model: &dyn Model, device: &Device) -> Result<Precision, &'static str> {
    let half = device.half();
    match half.scales_loss() {
        true if model.players().len() > 1 => Err("scales one loss, and this model has several"),
        true if recipe.clip_per_tensor || !recipe.update.is_end() => {
            Err("skips updates as a whole, which clip_per_tensor and update: backward do not allow")
        }
        _ => Ok(half),
    }
}

/// Returns what a run computes in on a device.
pub fn of(recipe: &Settled, model: &dyn Model, device: &Device) -> Precision {
    let usual = || match device.has_tensor_cores() && recipe.numerics != Level::Same {
        true => half(recipe, model, device).unwrap_or(Precision::Fp32),
        false => Precision::Fp32,
    };
    recipe.precision.unwrap_or_else(usual)
}

/// Returns what people are told of a precision that the recipe does not say; nothing where there is only fp32 to expect.
pub fn note(recipe: &Settled, model: &dyn Model, device: &Device) -> Option<String> {
    if recipe.precision.is_some() || !device.has_tensor_cores() {
        return None;
    }
    let usual = device.half();
    Some(match half(recipe, model, device) {
        _ if recipe.numerics == Level::Same => format!(
            "computes in fp32, by numerics: same; the default on GPUs with tensor cores is {usual} (--precision {usual})"
        ),
        Err(why) => format!("computes in fp32: {usual}, the default on this GPU, {why}"),
        Ok(half) => format!(
            "computes in {half}, the default on GPUs with tensor cores; for fp32: --precision fp32, or precision: fp32 in the recipe"
        ),
    })
}
