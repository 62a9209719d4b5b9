//! Combinations of what is left open, each compiled: what the choice of a search is held against.

use super::point::{Choice, Fitted, Point};
use super::{Candidate, Free, Stems, Verdict};
use crate::budget::Shape;
use crate::threads::side_by_side;
use ambitus_compile::passes::policy::Blocks;
use ambitus_families::error::RunError;

/// Returns every combination of what is left open: micro-batches, options, offloads, and of what is recomputed nothing, each value
/// more in every block, and all blocks. Those that fit come first, the fastest of them first. `typed` returns a shape's options.
pub(crate) fn lattice(
    shape: &Shape,
    free: &Free,
    budget: u64,
    stems: &Stems<'_>,
    typed: &(dyn Fn(&Choice<'_>, &Blocks) -> String + Sync),
) -> Result<Vec<Candidate>, RunError> {
    let point = |choice: &Choice<'_>| {
        let point = Point::new(shape, *choice, free, stems)?;
        let mut levels: Vec<Blocks> =
            (0..=point.steps()).step_by(point.blocks).map(|steps| point.checkpoint(steps)).collect();
        match free.checkpoint {
            true => levels.push(Blocks::All),
            false => levels = vec![shape.session.checkpoint.clone()],
        }
        let candidate = |blocks: Blocks| {
            let mut shape = point.shape.clone();
            shape.session.checkpoint = blocks;
            let plan = Fitted::of(stems.draft(shape)?, 0, budget, stems);
            let options = typed(choice, &plan.shape.session.checkpoint);
            let bytes = (plan.steps, plan.peak_bytes, plan.host_bytes);
            Ok(Candidate { options, planned: true, ..point.candidate(bytes, plan.seconds, budget) })
        };
        levels.into_iter().map(candidate).collect::<Result<Vec<_>, RunError>>()
    };
    let mut all: Vec<Candidate> = side_by_side(&choices(free), point)?.into_iter().flatten().collect();
    all.sort_by(Candidate::before);
    if let Some(first) = all.first_mut().filter(|c| c.verdict.fits()) {
        first.verdict = Verdict::Chosen;
    }
    Ok(all)
}

/// Returns the combinations but for what is recomputed.
pub(super) fn choices(free: &Free) -> Vec<Choice<'_>> {
    let mut out = Vec::new();
    for variant in std::iter::once(None).chain(free.variants.iter().map(Some)) {
        let own = variant.and_then(|v| v.micro_batch);
        let sizes = own.map_or_else(|| free.micro_batches.clone(), |own| vec![own]);
        for micro_batch in sizes {
            let offloads = std::iter::once(None).chain(free.offloads.iter().map(Some));
            out.extend(offloads.map(|offload| Choice { variant, offload, ..Choice::of(micro_batch) }));
        }
    }
    out
}
