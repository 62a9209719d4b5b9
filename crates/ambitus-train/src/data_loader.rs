//! Prepares micro-batches in the background: reads the clips of each update, packs them, fills batches.
//!
//! The batches are a pure function of (data, recipe, update): a resumed run gets the same ones. At most one finished batch waits
//! while one is in use and one is being filled; buffers are reused. Several ranks take turns at an update's micro-batches, which
//! are the same at any number of ranks. The last may be empty, because all ranks run equally many; so may the last of an update
//! that goes through ranks as a pipeline.

use ambitus_data::DataError;
use ambitus_data::pack::{Capacity, pack};
use ambitus_data::updates::{Drawn, Set, UpdateSize, Updates};
use ambitus_families::clips::{Clips, Use, When};
use ambitus_models::{Batch, Model};
use ambitus_plan::parts;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches in flight: one in use, one ready, one being filled.
pub const BUFFERS: usize = 3;

/// What the loader works on.
pub struct Work {
    /// Clips to train on.
    pub clips: Box<dyn Clips>,
    /// The data sets that they are of; none where there is one.
    pub sets: Vec<Set>,
    /// Whose batches they fill.
    pub model: Arc<dyn Model>,
    /// Size of an update.
    pub size: UpdateSize,
    /// Capacity of a micro-batch.
    pub capacity: ambitus_models::Capacity,
    /// Seed of the order.
    pub seed: u64,
    /// Whose micro-batches, of how many ranks.
    pub rank: (usize, usize),
    /// Of a pipeline: its ranks, and the micro-batches that are in it at a time.
    pub pipeline: Option<(usize, usize)>,
}

/// A micro-batch of an update.
pub struct Item {
    /// Which update, from 0.
    pub update: u64,
    /// Passes over the data before its first clip.
    pub epoch: u32,
    /// Clips of its update of each data set; nothing where there is one.
    pub of_sets: Vec<u32>,
    /// The inputs.
    pub batch: Batch,
    /// First micro-batch of its update.
    pub first: bool,
    /// Last micro-batch of its update.
    pub last: bool,
    /// Micro-batches of its update with this one and those behind it.
    pub left: usize,
    /// Rows that are filled.
    pub rows: usize,
}

/// The background thread and its channels.
pub struct Loader {
    ready: Receiver<Result<Item, DataError>>,
    spent: SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts with update `from`.
    ///
    /// # Errors
    /// Clips that do not fit, or a thread that cannot be started.
    pub fn start(work: Work, from: u64) -> Result<Loader, DataError> {
        let clips = &work.clips;
        let drawn = Drawn { frames: clips.rows(), weights: clips.weights(), sets: &work.sets };
        let updates = Updates::at(&drawn, work.size, work.seed, from)?;
        let (ready_in, ready) = sync_channel(1);
        let (spent, spent_out) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // The channel has room for every buffer.
            let _ = spent.try_send(work.model.batch(work.capacity));
        }
        let body = move || {
            let end = produce(&work, updates, &ready_in, &spent_out);
            if let Err(Some(why)) = end {
                let _ = ready_in.send(Err(why));
            }
        };
        let thread = std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(body)
            .map_err(|e| DataError::Packing(format!("cannot start the loader thread: {e}")))?;
        Ok(Loader { ready, spent, thread: Some(thread) })
    }

    /// Returns the next micro-batch; waits for it.
    ///
    /// # Errors
    /// Damaged clip files.
    pub fn next(&self) -> Result<Item, DataError> {
        self.ready
            .recv()
            .unwrap_or_else(|_| Err(DataError::Packing("the loader ended unexpectedly".to_owned())))
    }

    /// Gives a used batch back.
    pub fn recycle(&self, batch: Batch) {
        let _ = self.spent.try_send(batch);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Closing both channels ends the thread; it may be in the middle of a clip.
        let (_, closed) = sync_channel(0);
        self.ready = closed;
        let (open, _) = sync_channel(0);
        self.spent = open;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fills batches until the receiver is gone (`Err(None)`) or a clip is unreadable.
fn produce(
    work: &Work,
    mut updates: Updates,
    ready: &SyncSender<Result<Item, DataError>>,
    spent: &Receiver<Batch>,
) -> Result<(), Option<DataError>> {
    let capacity = Capacity { frames: work.capacity.rows as u32, clips: work.capacity.clips };
    loop {
        let update = updates.position();
        let Some(members) = updates.next() else { return Err(None) };
        let lengths: Vec<u32> = members.iter().map(|d| work.clips.rows()[d.clip as usize]).collect();
        let uses: Vec<Use> =
            members.iter().map(|d| Use { clip: d.clip as usize, when: When::Epoch(d.epoch) }).collect();
        let norms = work.clips.norms(&uses)?;
        let packed = pack(&lengths, capacity)?;
        let (rank, ranks) = work.rank;
        let count = packed.len().div_ceil(ranks);
        let count = work.pipeline.map_or(count, |(in_flight, ranks)| parts::padded(count, in_flight, ranks));
        for k in 0..count {
            let group = packed.get(k * ranks + rank).map_or(&[][..], Vec::as_slice);
            let group_uses: Vec<Use> = group.iter().map(|&i| uses[i]).collect();
            let mut batch = spent.recv().map_err(|_| None)?;
            work.clips.fill(&group_uses, &mut batch)?;
            batch.set_norms(&norms);
            let item = Item {
                update,
                epoch: members.first().map_or(0, |d| updates.epoch_of(*d)),
                of_sets: updates.of_sets(&members),
                batch,
                first: k == 0,
                last: k + 1 == count,
                left: count - k,
                rows: group.iter().map(|&i| lengths[i] as usize).sum(),
            };
            ready.send(Ok(item)).map_err(|_| None)?;
        }
    }
}
