//! How large the updates and micro-batches of a run are, which follows from a recipe and the lengths of its clips.

use crate::budget::{MicroBatch, SpokenBytes, clip_rows};
use crate::data::Data;
use crate::threads::side_by_side;
use ambitus_data::updates::{UpdateSize, Updates};
use ambitus_families::error::RunError;
use ambitus_models::{Capacity, Model, Rows};
use ambitus_recipe::recipe::{self, Settled, UpdateAt};

/// Micro-batch of a recipe that names none, in rows: a usual one of frames.
const DEFAULT_MICRO_ROWS: u64 = 3200;
/// The most clips of a micro-batch of a recipe that names none: the reference trainer's `max_samples`.
const DEFAULT_MICRO_CLIPS: usize = 64;
/// Micro-batches below the usual one that a search tries, each half of the one before.
const MOST_HALVES: usize = 3;
/// A micro-batch that is this part of itself short of the run's largest update is enlarged to it: gradients that need not be kept are
/// worth more than the rows.
const WORTH_WHOLE: usize = 32;

/// Updates and micro-batches of a run.
#[derive(Clone)]
pub struct Sizes {
    /// Size of an update.
    pub size: UpdateSize,
    /// Updates of the run.
    pub updates: u64,
    /// Longest clip, rows.
    pub longest: usize,
    /// Micro-batches that may be taken, the usual one first.
    pub micro_batches: Vec<MicroBatch>,
    /// Rows of an update, on average.
    pub update_rows: usize,
    /// Rows of a clip, for attention's time. See [`Shape::clip_rows`](crate::budget::Shape::clip_rows).
    pub clip_rows: f64,
    /// Rows of the clip that is sampled, if one is.
    pub sampled: Option<usize>,
    /// Some clips are held out.
    pub evaluate: bool,
    /// Most bytes of the process while the data is prepared. See
    /// [`Shape::prepare_bytes`](crate::budget::Shape::prepare_bytes).
    pub prepare_bytes: u64,
    /// Of what is spoken while it trains. See [`Shape::spoken`](crate::budget::Shape::spoken).
    pub spoken: SpokenBytes,
    /// What a run holds of its data without ranks, and with one.
    data_bytes: [u64; 2],
    schedule: Updates,
    shortest: usize,
    /// Rows and clips of the largest update.
    largest: (u64, usize),
    /// Clips of a micro-batch, where the recipe says how many.
    clips: Option<usize>,
    /// Rows of a micro-batch, where the recipe says how many.
    asked: Option<u64>,
    /// Ranks that take turns at the micro-batches.
    ranks: u64,
    whole_updates: bool,
}

impl Sizes {
    /// Computes the sizes for a recipe and the clips of its data.
    ///
    /// # Errors
    /// By key: clips too long for the model or the micro-batch, and what forming updates says.
    pub fn of(recipe: &Settled, model: &dyn Model, data: &Data) -> Result<Sizes, RunError> {
        let Rows { unit, per_second, most } = model.rows();
        let all = &data.rows;
        let longest = all.iter().copied().max().unwrap_or(1) as usize;
        if let Some(most) = most.filter(|most| longest > *most) {
            return Err(RunError::Usage(format!(
                "a clip has {longest} {unit}; the model's text positions end at {most} ({:.0} s): lower data.max_seconds",
                most as f64 / per_second
            )));
        }
        let trained = data.trained();
        let rows = &trained.rows;
        let size = match recipe.batch {
            recipe::Batch::Clips(n) => UpdateSize::Clips(n as usize),
            recipe::Batch::Frames(n) => UpdateSize::Frames(n),
            recipe::Batch::Seconds(s) => UpdateSize::Frames((s * per_second).round().max(1.0) as u64),
        };
        let schedule = Updates::new(&trained.drawn(), size, recipe.seed)?;
        let update_rows = schedule.target_frames().max(longest as u64);
        let updates = match recipe.length() {
            recipe::Length::Updates(n) => n,
            recipe::Length::Epochs(e) => schedule.per_epochs(e),
        };
        let whole_updates = recipe.update == UpdateAt::Backward;
        let largest = schedule.largest(updates)?;
        // The largest micro-batch asked for, cut down to what its share of the update needs.
        let asked = match recipe.micro_batch.frames {
            Some(n) => n,
            None if whole_updates => largest.0.max(longest as u64),
            None => DEFAULT_MICRO_ROWS.max(longest as u64),
        };
        if (longest as u64) > asked {
            return Err(RunError::Usage(format!(
                "the longest clip has {longest} {unit} ({:.1} s), more than the micro-batch of {asked}: raise micro_batch, or lower data.max_seconds",
                longest as f64 / per_second
            )));
        }
        let held_out = data.split.validation.first().map_or(0, |&i| all[i] as usize);
        let mut sizes = Sizes {
            size,
            updates,
            longest,
            micro_batches: Vec::new(),
            update_rows: update_rows as usize,
            clip_rows: clip_rows(rows.iter().map(|n| f64::from(*n))),
            sampled: recipe.sample.is_some().then_some(held_out).filter(|n| *n > 0),
            evaluate: !data.split.validation.is_empty(),
            prepare_bytes: data.prepare_bytes,
            spoken: SpokenBytes::default(),
            data_bytes: [0, 1].map(|ranks| data.run_bytes(update_rows, ranks)),
            schedule,
            shortest: rows.iter().copied().min().unwrap_or(1).max(1) as usize,
            largest,
            clips: recipe.micro_batch.clips.map(|n| n as usize),
            asked: recipe.micro_batch.frames,
            ranks: if recipe.is_placed() { 1 } else { recipe.ranks().into() },
            whole_updates,
        };
        sizes.micro_batches = match whole_updates {
            true => vec![sizes.whole_update(unit, asked)?],
            false => sizes.all(asked)?,
        };
        Ok(sizes)
    }

    /// Returns the number of updates that go once through the data.
    pub fn per_epoch(&self) -> f64 {
        self.schedule.per_epoch()
    }

    /// Returns the micro-batch that is asked for, and others that a search may take or name: the whole update, and halves down
    /// to the longest clip.
    fn all(&self, asked: u64) -> Result<Vec<MicroBatch>, RunError> {
        let longest = self.longest as u64;
        let usual = self.micro_batch(asked)?;
        let rows = usual.capacity.rows as u64;
        let whole = Some((self.update_rows as u64).max(self.largest.0).div_ceil(self.ranks));
        let whole = whole.filter(|n| *n > asked && *n <= u64::from(u32::MAX));
        let half = |n: &u64| Some(n / 2).filter(|n| *n > longest);
        let halves = std::iter::successors(half(&rows), half).take(MOST_HALVES);
        let least = Some(longest).filter(|n| *n < rows);
        let others: Vec<u64> = whole.into_iter().chain(halves).chain(least).collect();
        let mut all = vec![usual];
        // Cut to what updates fill, some may be the same.
        for other in side_by_side(&others, |rows| self.micro_batch(*rows))? {
            if all.iter().all(|m| m.capacity.rows != other.capacity.rows) {
                all.push(other);
            }
        }
        Ok(all)
    }

    /// Returns a micro-batch of at most `asked` rows, cut to what updates fill. Asked for its own rows, it stays as it is.
    ///
    /// # Errors
    /// A clip that is longer.
    pub fn micro_batch(&self, asked: u64) -> Result<MicroBatch, RunError> {
        let mut rows = asked.min(self.largest.0).max(self.longest as u64) as usize;
        loop {
            let clips = self.clips.unwrap_or_else(|| {
                rows.div_ceil(self.shortest).min(DEFAULT_MICRO_CLIPS).min(self.largest.1).max(1)
            });
            // At least the longest clip: validation clips go through the same capacity.
            let cut = (self.schedule.micro_batch(rows as u32, clips)? as usize).max(self.longest);
            if cut == rows {
                let (largest, most) = self.largest;
                let nearly = largest <= asked.min((rows + rows / WORTH_WHOLE) as u64) && most <= clips;
                let rows = if nearly { rows.max(largest as usize) } else { rows };
                let filled = ambitus_data::pack::Capacity { frames: rows as u32, clips };
                let count = (self.schedule.micro_batches(filled)?.round() as usize).max(1);
                let whole_updates = count <= self.ranks as usize
                    && self.schedule.take_at_most(self.updates, self.ranks as usize, filled)?;
                return Ok(MicroBatch { capacity: Capacity { rows, clips }, count, whole_updates });
            }
            rows = cut;
        }
    }

    /// Returns the bytes of data that a run holds while it trains, with `ranks` ranks in this process.
    pub fn data_bytes(&self, ranks: usize) -> u64 {
        let [of_all, with_one] = self.data_bytes;
        of_all + ranks as u64 * (with_one - of_all)
    }

    /// Returns the most rows of a micro-batch that a rank's share of an update fills.
    pub fn most_rows(&self) -> usize {
        (self.largest.0.div_ceil(self.ranks) as usize).max(self.longest)
    }

    /// Returns whether an update is one micro-batch, as its gradients are applied in backward.
    pub fn are_whole_updates(&self) -> bool {
        self.whole_updates
    }

    /// Returns the micro-batch with which updates could be in backward; `None` if the recipe's is too small.
    pub fn update_in_backward(&self) -> Option<MicroBatch> {
        self.whole_update("", self.asked.unwrap_or(u64::MAX)).ok()
    }

    /// Returns the micro-batch of an update in backward: it holds the largest update.
    fn whole_update(&self, unit: &str, asked: u64) -> Result<MicroBatch, RunError> {
        let (largest, clips) = self.largest;
        let rows = largest.max(self.longest as u64);
        let given = self.clips.unwrap_or(clips);
        if asked < largest || given < clips {
            return Err(RunError::Usage(format!(
                "update: backward (--update-in-backward) applies gradients as they are made, so an update must be one \
                 micro-batch; the largest update of this run has {rows} {unit} in {clips} clips, the micro-batch holds \
                 {asked} {unit} and {given} clips: set micro_batch: {{{unit}: {rows}, clips: {clips}}} (--micro-batch \
                 {rows}) or leave it out, or make the update smaller (batch: {{{unit}: {asked}}}), or set update: end"
            )));
        }
        Ok(MicroBatch {
            capacity: Capacity { rows: rows as usize, clips: given },
            count: 1,
            whole_updates: true,
        })
    }
}
