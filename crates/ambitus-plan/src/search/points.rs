//! Which combinations a search looks at: few of a large model, whose plans take tens of milliseconds each.
//!
//! What is given comes first, at every micro-batch; then options of other numbers, without and with offloads, as far as they can be
//! better than what was found; last what the best of all was not tried with. An offload is taken to add seconds, and one of states to
//! free no more than these.

use super::point::{Choice, Point};
use super::{Free, Stems};
use crate::budget::{MicroBatch, Shape};
use crate::threads::{THREADS, side_by_side};
use crate::variants::Variant;
use ambitus_families::error::RunError;
use ambitus_recipe::recipe::{Activations, Offload};

/// Instructions of a program up to which every micro-batch is tried beside other options, not three.
const SHORT: usize = 2_000;
/// Offloads that are tried of all combinations of a longer program where nothing fits: of everything, without and with all blocks
/// recomputed.
const STRONGEST: usize = 2;
/// What offsets may lose of a peak: one part in this.
const LOST: u64 = 32;

/// Finds combinations that may be the best within a budget.
struct Points<'s, 'f, 't> {
    shape: &'s Shape,
    free: &'f Free,
    budget: u64,
    stems: &'s Stems<'t>,
    found: Vec<Point<'f>>,
}

/// Returns the combinations that are looked at, as given first.
pub(super) fn points<'f>(
    shape: &Shape,
    free: &'f Free,
    budget: u64,
    stems: &Stems<'_>,
) -> Result<Vec<Point<'f>>, RunError> {
    let mut points = Points { shape, free, budget, stems, found: Vec::new() };
    points.add(free.micro_batches.iter().map(|m| Choice::of(*m)).collect())?;
    let sizes = points.sizes();
    // Moments in 8 bits are smaller and faster than in bf16: these are looked at last, beside what is best.
    let (second, first): (Vec<&Variant>, Vec<&Variant>) = free.variants.iter().partition(|v| v.in_bf16());
    points.add(first.into_iter().flat_map(|v| points.with(v, &sizes)).collect())?;
    points.offload(&sizes)?;
    points.beside_best(&sizes, &second)?;
    Ok(points.found)
}

/// Returns those that [`points`] left out, for where none of them fits: of a short program all, else what offloads most with the
/// smallest micro-batch. `found`: what it returned.
pub(super) fn others<'f>(
    shape: &Shape,
    free: &'f Free,
    budget: u64,
    stems: &Stems<'_>,
    found: Vec<Point<'f>>,
) -> Result<Vec<Point<'f>>, RunError> {
    let mut points = Points { shape, free, budget, stems, found };
    let is_short = points.is_short();
    let least = free.micro_batches.iter().min_by_key(|m| m.capacity.rows).copied();
    let sizes = if is_short { points.sizes() } else { least.into_iter().collect() };
    let of = |v: &'f Variant| points.with(v, &sizes);
    let bases = free.variants.iter().flat_map(of).filter(|c| points.is_new(c));
    let bases: Vec<Choice<'_>> = bases.collect();
    points.add(bases)?;
    let tried = |p: &&Point<'_>| sizes.contains(&p.choice.micro_batch) || p.choice.variant.is_some();
    let alone = points.found.iter().filter(|p| p.choice.offload.is_none()).filter(tried);
    let forms = alone.flat_map(|p| {
        let all = points.forms(p);
        all[if is_short { 0 } else { all.len().saturating_sub(STRONGEST) }..].to_vec()
    });
    let forms: Vec<Choice<'_>> = forms.filter(|c| points.is_new(c)).collect();
    points.add(forms)?;
    Ok(points.found)
}

impl<'f> Points<'_, 'f, '_> {
    /// Compiles combinations.
    fn add(&mut self, choices: Vec<Choice<'f>>) -> Result<(), RunError> {
        let &mut Points { shape, free, stems, .. } = self;
        self.found.extend(side_by_side(&choices, |c| Point::new(shape, *c, free, stems))?);
        Ok(())
    }

    fn is_short(&self) -> bool {
        self.found.iter().take(self.free.micro_batches.len()).all(|p| p.instructions <= SHORT)
    }

    fn is_new(&self, choice: &Choice<'_>) -> bool {
        self.found.iter().all(|p| p.choice != *choice)
    }

    /// Returns options with each of these micro-batches, or with their own.
    fn with(&self, variant: &'f Variant, sizes: &[MicroBatch]) -> Vec<Choice<'f>> {
        let of = |m: &MicroBatch| Choice { variant: Some(variant), ..Choice::of(*m) };
        variant.micro_batch.as_ref().map_or(sizes, std::slice::from_ref).iter().map(of).collect()
    }

    /// Returns a combination with each offload that may be enough, from little to everything.
    fn forms(&self, point: &Point<'f>) -> Vec<Choice<'f>> {
        let copies_all = |o: &Offload| o.activations != Activations::None;
        let may_fit = |o: &&Offload| copies_all(o) || point.least_peak() <= self.budget + point.moved(o);
        let of = |o: &'f Offload| {
            let kept = Choice { offload: Some(o), ..point.choice };
            // All blocks recomputed leave little of activations to copy.
            let again = self.free.checkpoint && copies_all(o);
            std::iter::once(kept).chain(again.then_some(Choice { all_blocks: true, ..kept }))
        };
        self.free.offloads.iter().filter(may_fit).flat_map(of).collect()
    }

    /// Returns the micro-batches that are tried beside other options: the usual one, the fastest, and the smallest where memory is
    /// short; of a short program all.
    fn sizes(&self) -> Vec<MicroBatch> {
        let given = || self.found.iter().take(self.free.micro_batches.len());
        let fastest = given().min_by(|a, b| a.least_cost().total_cmp(&b.least_cost()));
        let large = given().next().is_none_or(|p| p.peak > self.budget);
        let least = given().min_by_key(|p| p.choice.micro_batch.capacity.rows).filter(|_| large);
        let all = if self.is_short() { self.free.micro_batches.len() } else { 0 };
        let others = fastest.into_iter().chain(least).chain(given().take(all));
        let mut sizes: Vec<MicroBatch> = given().take(1).map(|p| p.choice.micro_batch).collect();
        for m in others.map(|p| p.choice.micro_batch) {
            if !sizes.contains(&m) {
                sizes.push(m);
            }
        }
        sizes
    }

    /// Returns the least cost of what should fit.
    fn best(&self) -> f64 {
        self.found.iter().map(|p| p.cost(self.budget)).fold(f64::INFINITY, f64::min)
    }

    /// Tries offloads where memory is short, with what no other is smaller and faster than, as long as the same without them is
    /// faster than everything that should fit.
    fn offload(&mut self, sizes: &[MicroBatch]) -> Result<(), RunError> {
        let large = |p: &&Point<'_>| {
            p.peak > self.budget && (p.choice.variant.is_some() || sizes.contains(&p.choice.micro_batch))
        };
        // Of more micro-batches each copies what is offloaded again.
        let of_use = |p: &&Point<'_>| {
            let better =
                |o: &Point<'_>| o.peak <= p.peak && o.least_cost() < p.least_cost() && o.count() <= p.count();
            !self.found.iter().any(better)
        };
        let bases = self.found.iter().enumerate().filter(|(_, p)| large(p) && of_use(p));
        let mut bases: Vec<usize> = bases.map(|(at, _)| at).collect();
        bases.sort_by(|a, b| self.found[*a].least_cost().total_cmp(&self.found[*b].least_cost()));
        for base in bases {
            if self.found[base].least_cost() >= self.best() {
                break;
            }
            self.offload_of(base)?;
        }
        Ok(())
    }

    /// Tries offloads of one combination, until one surely needs nothing recomputed; those of activations, which are last, side by
    /// side.
    fn offload_of(&mut self, base: usize) -> Result<(), RunError> {
        for some in self.forms(&self.found[base]).rchunks(THREADS).rev() {
            let first = self.found.len();
            self.add(some.to_vec())?;
            let surely =
                |p: &Point<'_>| p.peak + p.peak / LOST <= self.budget && p.cost(self.budget).is_finite();
            if self.found[first..].iter().any(surely) {
                break;
            }
        }
        Ok(())
    }

    /// Tries the best with what it was not tried with: other sizes, and moments in bf16.
    fn beside_best(&mut self, sizes: &[MicroBatch], in_bf16: &[&'f Variant]) -> Result<(), RunError> {
        let cost = |p: &&Point<'_>| p.cost(self.budget);
        let best = self.found.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|p| p.choice);
        let Some((best, variant)) = best.and_then(|c| Some((c, c.variant?))) else { return Ok(()) };
        let other = |m: &&MicroBatch| variant.micro_batch.is_none() && !sizes.contains(m);
        let others = self.free.micro_batches.iter().filter(other);
        let others = others.map(|m| Choice { micro_batch: *m, ..best });
        let beside = in_bf16.iter().copied().filter(|v| v.is_beside(variant));
        let beside = beside.map(|v| Choice { variant: Some(v), ..best });
        self.add(others.chain(beside).collect())
    }
}
