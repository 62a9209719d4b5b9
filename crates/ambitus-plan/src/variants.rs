//! Options that a search may take in place of those that a recipe leaves out.

use crate::budget::MicroBatch;
use crate::change::Change;
use crate::device::Device;
use crate::precision;
use crate::sizes::Sizes;
use ambitus_models::Model;
use ambitus_recipe::recipe::{Defaults, Offload, OptimizerChoice, Precision, Settled, UpdateAt};

/// Options that go together and change numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// As they are typed.
    pub options: String,
    /// What they change.
    pub change: Change,
    /// The micro-batch that they need, in place of any other.
    pub micro_batch: Option<MicroBatch>,
}

impl Variant {
    /// Returns whether AdamW's moments are in bf16.
    pub fn in_bf16(&self) -> bool {
        self.change.optimizer == Some(OptimizerChoice::AdamWBf16)
    }

    /// Returns whether another differs from this in AdamW's moments alone.
    pub fn is_beside(&self, other: &Variant) -> bool {
        self.change == Change { optimizer: self.change.optimizer, ..other.change.clone() }
    }
}

/// Returns what may be taken on a device where a recipe leaves it open: what the model computes in, how AdamW keeps its moments,
/// and when it is applied, in every combination that a recipe can have.
pub fn open(
    recipe: &Settled,
    defaults: &Defaults,
    model: &dyn Model,
    sizes: &Sizes,
    device: &Device,
) -> Vec<Variant> {
    let usual = precision::of(recipe, model, device);
    let half = precision::half(recipe, model, device).ok();
    // Without bf16, an update in backward has fp32 alone: fp16 needs all gradients before one is applied.
    let other = if device.computes_bf16() { Precision::Bf16Pure } else { Precision::Fp32 };
    let free = |p: &Precision| recipe.precision.is_none() && *p != usual;
    let precisions = [None].into_iter().chain(half.into_iter().chain([other]).filter(free).map(Some));
    let narrower = OptimizerChoice::default().narrower().iter().filter(|_| recipe.optimizer.is_none());
    let optimizers: Vec<_> = [None].into_iter().chain(narrower.map(|o| Some(*o))).collect();
    let whole = sizes.update_in_backward();
    // Ranks that share parameters clip by the norm of all.
    let alone =
        matches!(recipe.shared(), Ok(None)) && recipe.update == UpdateAt::End && !says_all_else(recipe);
    let in_backward = [None].into_iter().chain(whole.filter(|_| alone).map(Some));
    let mut out = Vec::new();
    for micro_batch in in_backward {
        for precision in precisions.clone() {
            for &optimizer in &optimizers {
                let in_backward = micro_batch.is_some();
                let change = Change { precision, optimizer, in_backward, ..Change::default() };
                let mut changed = recipe.recipe().clone();
                change.to_recipe(&mut changed);
                let changed = changed.settled(defaults);
                // What is usual may not stand beside the others.
                let same = precision::of(&changed, model, device) == precision.unwrap_or(usual);
                if change != Change::default() && same && changed.validate().is_ok() {
                    let options = change.options(recipe.recipe());
                    out.push(Variant { options, change, micro_batch });
                }
            }
        }
    }
    out
}

/// Returns whether a recipe says everything but when updates are applied: then they are at its end, so that a run's own recipe is not
/// searched again.
fn says_all_else(recipe: &Settled) -> bool {
    let size = recipe.micro_batch.frames.is_some();
    let kept = recipe.checkpoint.is_some() && recipe.offload.is_some();
    size && kept && recipe.precision.is_some() && recipe.optimizer.is_some()
}

/// Returns what may wait on the host, from little to everything; `ema`: an average is kept.
pub fn offloads(ema: bool) -> Vec<Offload> {
    let (none, optimizer) = (Offload::default(), 1.0);
    let states = Offload { ema, optimizer, gradients: true, ..none.clone() };
    let mut forms = vec![
        Offload { optimizer: 0.25, ..none.clone() },
        Offload { optimizer: 0.5, ..none.clone() },
        Offload { optimizer: 0.75, ..none.clone() },
        Offload { optimizer, ..none.clone() },
        Offload { optimizer, ema, ..none.clone() },
        states.clone(),
        Offload { parameters: true, ..states },
        Offload { ema, ..Offload::all() },
    ];
    if ema {
        forms.insert(0, Offload { ema, ..none });
    }
    forms.dedup();
    forms
}
