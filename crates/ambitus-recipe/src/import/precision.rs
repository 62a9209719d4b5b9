//! What the model computes in, of the launcher's file, the arguments and other trainers.

use super::Origin;
use super::given::Given;
use super::judge::{Judge, conflict};
use crate::near::nearest;
use crate::recipe::{Precision, RecipeError};

const KEYS: &[&str] = &["mixed_precision", "fp16", "bf16", "precision"];

/// # Errors
/// fp8, and places that ask for different precisions.
pub(super) fn precision(j: &mut Judge, origin: &Origin) -> Result<(), RecipeError> {
    let launcher =
        j.get("mixed_precision").map(|g| launcher(g).map(|p| (g, "mixed_precision", p))).transpose()?;
    let on = |id| -> Result<Option<&Given>, RecipeError> {
        let Some(g) = j.get(id) else { return Ok(None) };
        Ok(g.flag()?.then_some(g))
    };
    let bf16 = on("bf16")?.map(|g| (g, "bf16", Precision::Bf16Mixed));
    let fp16 = on("fp16")?.map(|g| (g, "fp16", Precision::Fp16Mixed));
    let dtype = j.get("precision").map(|g| dtype(g).map(|p| (g, "precision", p))).transpose()?;
    // Coqui's `mixed_precision: true` is fp16 unless `precision` says bf16.
    let off = |g: &Given| matches!(launcher, Some((l, _, Precision::Fp32)) if l.file == g.file);
    let dtype = dtype.filter(|(g, ..)| !off(g));
    let launcher = match (launcher, dtype) {
        (Some((g, ..)), Some(_)) if g.flag() == Ok(true) => None,
        (launcher, _) => launcher,
    };
    let said: Vec<_> = [bf16, fp16, dtype].into_iter().flatten().collect();
    // What the arguments turn on goes before a launcher's `no`, as in the Trainer.
    let strong = launcher.filter(|(_, _, p)| *p != Precision::Fp32 || said.is_empty());
    let all: Vec<_> = strong.into_iter().chain(said).collect();
    let Some((first, _, chosen)) = all.first().copied() else {
        if let Some((precision, place)) = origin.precision {
            j.absent(KEYS, "precision", precision, place);
        }
        rest(j);
        return Ok(());
    };
    if let Some((other, ..)) = all.iter().find(|(_, _, p)| *p != chosen) {
        return Err(conflict(first, other));
    }
    for (_, id, _) in &all {
        j.used(id, "precision", chosen);
    }
    rest(j);
    Ok(())
}

fn rest(j: &mut Judge) {
    for id in KEYS {
        let off = "off: the device's default is taken, which is 16 bits on GPUs with tensor cores; for fp32 there, `precision: fp32`";
        j.default(id, "precision", off);
    }
}

fn launcher(g: &Given) -> Result<Precision, RecipeError> {
    match g.flag() {
        Ok(false) => return Ok(Precision::Fp32),
        Ok(true) => return Ok(Precision::Fp16Mixed),
        Err(_) => {}
    }
    let word = g.text()?.to_ascii_lowercase();
    match word.rsplit('.').next().unwrap_or_default() {
        "fp16" => Ok(Precision::Fp16Mixed),
        "bf16" => Ok(Precision::Bf16Mixed),
        "fp32" => Ok(Precision::Fp32),
        "fp8" => Err(g.bad("fp8 is not supported: bf16 has the same range with more digits; write bf16")),
        word => {
            let near = nearest(word, ["no", "fp16", "bf16"]).map(|n| format!("; {n} is nearest"));
            Err(g.bad(format!("`{}` is not no, fp16 or bf16{}", g.shown(), near.unwrap_or_default())))
        }
    }
}

fn dtype(g: &Given) -> Result<Precision, RecipeError> {
    let word = g.text()?.to_ascii_lowercase();
    match word.rsplit('.').next().unwrap_or_default() {
        "fp16" | "float16" | "half" => Ok(Precision::Fp16Mixed),
        "bf16" | "bfloat16" => Ok(Precision::Bf16Mixed),
        "fp32" | "float32" | "float" | "auto" => Ok(Precision::Fp32),
        _ => Err(g.bad(format!("`{}` is not float32, float16 or bfloat16", g.shown()))),
    }
}
