//! The largest micro-batch, and the longest clip, that fit.

use super::stems::Stems;
use crate::budget::{Draft, RunPlan, Shape};
use crate::threads::side_by_side;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::plan::Heights;
use ambitus_families::error::RunError;
use ambitus_ir::target::Target;
use ambitus_models::Capacity;

/// Beyond an hour of audio at once nothing is asked for.
const MOST_ROWS: usize = 1 << 19;
/// Programs for which the largest micro-batch is found to the row.
const EXACT_INSTRUCTIONS: usize = 12_000;
/// Lines that are followed to the largest micro-batch before halves are.
const LINES: usize = 6;

/// Returns the most rows of a micro-batch, up to `most`, with which a shape fits, from its own on; `None` if it does not fit as
/// it is. Exact for programs up to 12,000 instructions. For larger ones (offload makes some of tens of thousands) each plan
/// takes a second of work: the result is what a few of them find.
///
/// # Errors
/// As [`RunPlan::new`].
pub fn most_rows(
    shape: &Shape,
    most: usize,
    budget: u64,
    target: &dyn Target,
) -> Result<Option<usize>, RunError> {
    most_rows_of(shape, most, budget, (target, &Heights::default()))
}

/// Returns [`most_rows`], sharing the heights of the same programs with other calls.
fn most_rows_of(
    shape: &Shape,
    most: usize,
    budget: u64,
    (target, heights): (&dyn Target, &Heights),
) -> Result<Option<usize>, RunError> {
    let first = Draft::new(shape.clone(), target)?;
    if first.peak_within(budget, heights) > budget {
        return Ok(None);
    }
    more_rows(shape, (first.least_bytes, first.instructions()), most, budget, (target, heights)).map(Some)
}

/// Finds the most rows of a shape that fits, from its least bytes and the instructions of its longest program. See
/// [`most_rows`].
fn more_rows(
    shape: &Shape,
    first: (u64, usize),
    most: usize,
    budget: u64,
    (target, heights): (&dyn Target, &Heights),
) -> Result<usize, RunError> {
    let capacity = shape.session.capacity;
    let stems = Stems::of(target);
    let draft = |rows: usize| stems.draft_of_size(shape.with_capacity(Capacity { rows, ..capacity }));
    let (first_bytes, instructions) = first;
    let exact = instructions <= EXACT_INSTRUCTIONS;
    let most = most.min(MOST_ROWS);
    // By what is live alone, which no placement is below. It is nearly a line in rows, or two where gradients take the bytes of
    // activations: each try is where the line through the last two meets the budget, and a little to its other side. Where that does
    // not end soon, by halves.
    let mut fits = (capacity.rows, first_bytes);
    let mut large: Option<usize> = None;
    let mut largest: Option<Draft> = None;
    let (mut last, mut next) = (fits, 2 * fits.0);
    // Bytes of a row near the edge, from tries that are far enough apart for the rounding of sizes not to matter.
    let mut per_row = 1.0;
    for round in 0.. {
        if fits.0 >= most || large.is_some_and(|n| n <= fits.0 + 1 + fits.0 / 512) {
            break;
        }
        let rows = next.min(most);
        let drafted = draft(rows)?;
        let bytes = drafted.least_bytes;
        let slope = (bytes as f64 - last.1 as f64) / (rows as f64 - last.0 as f64);
        if rows.abs_diff(last.0) >= rows / 64 {
            per_row = slope.max(1.0);
        }
        let edge = rows as f64 + (budget as f64 - bytes as f64) / slope.max(1.0);
        let aside = 1.0 + (edge - rows as f64).abs() / 512.0;
        last = (rows, bytes);
        if bytes <= budget {
            fits = last;
            largest = Some(drafted);
        } else {
            large = Some(rows);
        }
        next = match large {
            None => (edge + aside).min(64.0 * rows as f64) as usize,
            Some(large) if round >= LINES => fits.0 + (large - fits.0) / 2,
            Some(_) if bytes <= budget => (edge + aside) as usize,
            Some(_) => (edge - aside) as usize,
        };
        next = next.clamp(fits.0 + 1, large.map_or(usize::MAX, |large| (large - 1).max(fits.0 + 1)));
    }
    // And down from there by what offsets add: nearly the same share of the bytes at every size, which says where the edge
    // should be. Where it is not there, by halves.
    let (mut low, mut high) = (capacity.rows, large.unwrap_or(fits.0 + 1));
    let (mut next, mut share, mut one_more) = (fits.0, f64::INFINITY, false);
    for tried in 1.. {
        if high <= low + 1 || (!exact && low > capacity.rows) {
            break;
        }
        let rows = next.clamp(low + 1, high - 1);
        let drafted = match largest.take().filter(|d| d.shape.session.capacity.rows == rows) {
            Some(drafted) => drafted,
            None => draft(rows)?,
        };
        let peak = drafted.peak_within(budget, heights);
        let (least, this) = (drafted.least_bytes as f64, peak as f64 / drafted.least_bytes.max(1) as f64);
        if peak <= budget {
            // It was not made as low as can be.
            (low, share) = (rows, share.min(this));
        } else {
            (high, share) = (rows, this);
        }
        // Where the first that fits will do, a little more is left.
        let spare = budget as f64 - if exact { least * share } else { peak as f64 };
        let edge = (rows as f64 + spare / (per_row * if exact { share } else { 1.0 })) as usize;
        one_more = edge == low && !one_more;
        next = match edge {
            _ if one_more => low + 1,
            edge if tried < LINES && edge > low && edge < high => edge,
            _ => low + (high - low) / 2,
        };
    }
    Ok(low)
}

/// Returns the most rows that fit a budget with a plan's options: of a micro-batch, and of one clip, up to `most`, with
/// everything recomputed. `longest`: rows of the longest clip.
///
/// # Errors
/// As [`RunPlan::new`].
pub fn largest(
    plan: &RunPlan,
    longest: usize,
    most: usize,
    budget: u64,
    target: &dyn Target,
) -> Result<[Option<usize>; 2], RunError> {
    let shape = &plan.shape;
    let with = (target, &Heights::default());
    let as_planned = || {
        if plan.peak_bytes <= budget {
            let programs = plan.whole().into_iter().flat_map(|p| &p.programs);
            let instructions = programs.map(|p| p.program.instrs.len()).max().unwrap_or(0);
            let known = (plan.least_bytes(), instructions);
            return more_rows(shape, known, usize::MAX, budget, with).map(Some);
        }
        let least = shape.with_capacity(Capacity { rows: longest, ..shape.session.capacity });
        most_rows_of(&least, usize::MAX, budget, with)
    };
    let one_clip = || {
        let mut shape = shape.with_capacity(Capacity { rows: longest, clips: 1 });
        shape.session.checkpoint = Blocks::All;
        most_rows_of(&shape, most, budget, with)
    };
    let either = |first: &bool| if *first { as_planned() } else { one_clip() };
    let found = side_by_side(&[true, false], either)?;
    Ok([found[0], found[1]])
}
