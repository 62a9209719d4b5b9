//! Options that a search may take in place of those that a recipe leaves out.

use crate::device::Device;
use crate::precision;
use crate::session::SessionOptions;
use ambitus_compile::passes::Numerics;
use ambitus_models::Model;
use ambitus_recipe::recipe::{Offload, OptimizerChoice, Precision, Recipe, Settled};

/// Options that go together.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// As they are typed.
    pub options: String,
    /// What they do to numbers.
    pub numerics: Numerics,
    /// What the model computes in.
    pub precision: Option<Precision>,
    /// How AdamW keeps its moments.
    pub optimizer: Option<OptimizerChoice>,
    /// What waits on the host.
    pub offload: Option<Offload>,
}

/// Returns what may be taken on a device where a recipe leaves it open, the least change first.
pub fn open(recipe: &Settled, model: &dyn Model, device: &Device) -> Vec<Variant> {
    let mut out = Vec::new();
    // In this process's own memory it frees nothing, unless there is a budget of its own for it.
    if (device.is_card() || recipe.host_memory.is_some()) && recipe.offload.is_none() {
        out.extend(offloads(recipe.ema.is_kept()).into_iter().map(Variant::of_offload));
    }
    let usual = precision::of(recipe, model, device);
    let half = precision::half(recipe, model, device).ok();
    let precision = half.filter(|half| recipe.precision.is_none() && *half != usual);
    let optimizer = Some(OptimizerChoice::AdamW8bit).filter(|_| recipe.optimizer.is_none());
    let given = recipe.offload.is_none() && device.is_card();
    let offload = Some(Offload { ema: recipe.ema.is_kept(), ..Offload::all() }).filter(|_| given);
    for (precision, optimizer, offload) in [
        (precision, None, None),
        (None, optimizer, None),
        (precision, optimizer, None),
        (precision, optimizer, offload),
    ] {
        let words = [
            precision.map(|p| format!("--precision {p}")),
            optimizer.map(|o| format!("--optimizer {o}")),
            offload.as_ref().map(|o| format!("--offload {o}")),
        ];
        let options = words.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        let known = out.iter().any(|v: &Variant| v.options == options);
        if !options.is_empty() && !known {
            let numerics = Numerics::Changed;
            out.push(Variant { options, numerics, precision, optimizer, offload });
        }
    }
    out
}

/// Returns what may wait on the host, from little to everything; `ema`: an average is kept.
pub fn offloads(ema: bool) -> Vec<Offload> {
    let (none, optimizer) = (Offload::default(), 1.0);
    let states = Offload { ema, optimizer, gradients: true, ..none.clone() };
    let mut forms = vec![
        Offload { optimizer: 0.5, ..none.clone() },
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

impl Variant {
    /// Returns a variant that only offloads this.
    pub fn of_offload(offload: Offload) -> Variant {
        Variant { options: format!("--offload {offload}"), offload: Some(offload), ..Variant::default() }
    }

    /// Puts the options into a session.
    pub fn to_session(&self, session: &mut SessionOptions) {
        if let Some(p) = self.precision {
            session.precision = p;
        }
        if let (Some(o), Some(optimizer)) = (self.optimizer, &mut session.optimizer) {
            optimizer.states = o.states();
        }
        if let Some(offload) = &self.offload {
            session.offload = offload.pass();
        }
    }

    /// Puts the options into a recipe.
    pub fn to_recipe(&self, recipe: &mut Recipe) {
        recipe.precision = self.precision.or(recipe.precision);
        recipe.optimizer = self.optimizer.or(recipe.optimizer);
        if let Some(offload) = &self.offload {
            recipe.offload = Some(offload.clone());
        }
    }
}
