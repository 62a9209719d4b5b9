//! What changes numbers, and by how much: the order in which a refusal proposes changes.

use crate::asked::Asked;
use crate::change::Change;
use crate::data::Data;
use crate::device::Device;
use ambitus_compile::optimizer::States;
use ambitus_families::prepare::Limit;
use ambitus_recipe::recipe::{Activations, Offload, OptimizerChoice, Origins, Precision, UpdateAt};

/// Ranks of adapters that are proposed.
const RANKS: [u32; 2] = [16, 8];
/// Parts of what may wait on the host.
pub(super) const PARTS: u8 = 5;

/// Options of which one at most is taken; before the first is what the recipe says.
pub(super) struct Dim {
    pub levels: Vec<Level>,
}

/// One of these options.
pub(super) struct Level {
    /// How large a change it is compared with all others: a power of two, or 0 for no change.
    pub bit: u32,
    /// As an option.
    pub change: Change,
}

impl Dim {
    /// Returns how large a change a level is.
    pub fn bit(&self, level: usize) -> u32 {
        level.checked_sub(1).map_or(0, |at| self.levels[at].bit)
    }

    /// Returns whether this dimension is the rank of adapters.
    pub fn is_lora(&self) -> bool {
        self.levels.iter().any(|level| level.change.lora.is_some())
    }

    /// Returns whether this dimension is the update in backward.
    pub fn is_update(&self) -> bool {
        self.levels.iter().any(|level| level.change.in_backward)
    }

    /// Returns the levels of which any may be the one that saves most beside others, up to `most`: the last; none, where options
    /// may add bytes; and fp32, which spares casts of weights that a 16-bit run has.
    pub fn extremes(&self, most: usize) -> Vec<usize> {
        let fp32 = |level: &usize| self.levels[level - 1].change.precision == Some(Precision::Fp32);
        let mut out = vec![most];
        if self.may_add() && most > 0 {
            out.extend((1..most).rev().filter(fp32).chain([0]));
        }
        out
    }

    /// Returns whether its options may also add bytes: casts of weights, additions, an update that must be one micro-batch.
    pub fn may_add(&self) -> bool {
        let adds = |c: &Change| c.precision.is_some() || c.in_backward || c.lora.is_some();
        self.levels.iter().any(|level| adds(&level.change))
    }
}

/// Returns what a recipe's numbers could be changed to on a device. The least change first, where each counts for more than all
/// before it together: a limit of length that leaves out no clip; moments in bf16, in 8 bits; no average; another precision of
/// activations; clipping per tensor with the update in backward; weights in bf16; adapters of rank 16, of 8; clips left out.
pub(super) fn dims(asked: &Asked, data: &Data, device: &Device, origins: &Origins) -> Vec<Dim> {
    let recipe = &asked.recipe;
    let mut out: Vec<Dim> = Vec::new();
    let mut dim = |key: &str, levels: Vec<(u32, Change)>| {
        // No option changes what a stage sets itself.
        if !levels.is_empty() && !origins.is_of_a_stage(key) {
            let levels = levels.into_iter().map(|(bit, change)| Level { bit, change }).collect();
            out.push(Dim { levels });
        }
    };
    let change = Change::default;
    let now = recipe.optimizer.unwrap_or_default();
    let bit = |o: OptimizerChoice| if o.states() == States::Bf16 { 1 } else { 2 };
    let narrower = now.narrower().iter().map(|o| (bit(*o), Change { optimizer: Some(*o), ..change() }));
    dim("optimizer", narrower.collect());
    let given = recipe.offload.clone();
    let left = given.clone().map(Offload::without_average).filter(|left| Some(left) != given.as_ref());
    let average = recipe.ema.is_kept().then(|| (4, Change { no_average: true, offload: left, ..change() }));
    dim("ema", average.into_iter().collect());
    let now = asked.shape.session.precision;
    let other = if now.narrow().is_none() { device.half() } else { Precision::Fp32 };
    let pure = device.computes_bf16().then_some((32, Precision::Bf16Pure));
    let others = [(8, other)].into_iter().chain(pure).filter(|_| now != Precision::Bf16Pure);
    dim("precision", others.map(|(bit, p)| (bit, Change { precision: Some(p), ..change() })).collect());
    // Ranks that share parameters clip by the norm of all.
    let alone = matches!(recipe.shared(), Ok(None));
    let backward =
        (alone && recipe.update == UpdateAt::End).then(|| (16, Change { in_backward: true, ..change() }));
    dim("update", backward.into_iter().collect());
    let rank = recipe.lora.as_ref().map_or(u32::MAX, |lora| lora.rank);
    let ranks = RANKS.into_iter().zip([64, 128]).filter(|(r, _)| *r < rank && recipe.freeze.is_empty());
    dim("lora", ranks.map(|(r, bit)| (bit, Change { lora: Some(r), ..change() })).collect());
    let left = |l: &&Limit| data.leaves_named(l, recipe, &*asked.shape.model);
    let lossy =
        data.limits.iter().filter(|l| l.loses).filter(left).zip(0..).map(|(limit, i)| (256 << i, limit));
    let limits = data.limits.iter().filter(|l| !l.loses).map(|limit| (0, limit)).chain(lossy);
    dim("data", limits.map(|(bit, l)| (bit, Change { limit: Some(*l), ..change() })).collect());
    out
}

/// Returns what waits on the host, of its parts: optimizer, average, gradients, parameters, activations.
pub(super) fn offload(parts: u8) -> Offload {
    let on = |bit: u8| parts & (1 << bit) != 0;
    Offload {
        optimizer: f64::from(u8::from(on(0))),
        ema: on(1),
        gradients: on(2),
        parameters: on(3),
        activations: if on(4) { Activations::All } else { Activations::None },
        disk: None,
    }
}
