//! Prepares micro-batches in the background: reads the clips of each update, packs them, draws their noise and spans.
//!
//! What comes out is a pure function of (data, recipe, update): a resumed run gets the same batches. At most one finished
//! batch waits while one is in use and one is being filled; buffers go round.

use ambitus_data::pack::{Capacity, pack};
use ambitus_data::updates::{UpdateSize, Updates};
use ambitus_data::{ClipIndex, DataError, load_clip};
use ambitus_models::f5::batch::{self, Batch, Clip};
use ambitus_models::f5::draw::{self, Draw};
use ambitus_models::f5::model;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches in flight: one in use, one ready, one being filled.
pub const BUFFERS: usize = 3;

/// What the loader works on.
#[derive(Clone)]
pub struct Work {
    /// Clip files to train on, in the order of their names.
    pub clips: Vec<Source>,
    /// Size of an update.
    pub size: UpdateSize,
    /// Capacity of a micro-batch.
    pub capacity: model::Capacity,
    /// Seed of order and draws.
    pub seed: u64,
}

/// One training clip on disk.
#[derive(Clone)]
pub struct Source {
    /// Stable identity for draws: a hash of the name.
    pub sample: u64,
    /// Prepared clip file.
    pub path: PathBuf,
    /// Frames.
    pub frames: u32,
}

/// The clips of an index that training uses.
pub fn sources(index: &ClipIndex, chosen: &[usize]) -> Vec<Source> {
    let source = |&i: &usize| {
        let c = &index.clips[i];
        Source { sample: sample_id(&c.name), path: index.path(i), frames: c.frames }
    };
    chosen.iter().map(source).collect()
}

/// Identity of a clip in random draws: independent of its place in the data.
pub fn sample_id(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}

/// A micro-batch of an update.
pub struct Item {
    /// Which update, from 0.
    pub update: u64,
    /// Passes over the data before its first clip.
    pub epoch: u32,
    /// The inputs.
    pub batch: Batch,
    /// Normaliser of the update.
    pub norm: f32,
    /// First micro-batch of its update.
    pub first: bool,
    /// Last micro-batch of its update.
    pub last: bool,
    /// Frames that are filled.
    pub frames: usize,
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
        let frames: Vec<u32> = work.clips.iter().map(|c| c.frames).collect();
        let updates = Updates::at(&frames, work.size, work.seed, from)?;
        let (ready_in, ready) = sync_channel(1);
        let (spent, spent_out) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // The channel has room for every buffer.
            let _ = spent.try_send(Batch::new(work.capacity));
        }
        let body = move || {
            let end = produce(&work, &frames, updates, &ready_in, &spent_out);
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

    /// The next micro-batch; waits for it.
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
    frames: &[u32],
    mut updates: Updates,
    ready: &SyncSender<Result<Item, DataError>>,
    spent: &Receiver<Batch>,
) -> Result<(), Option<DataError>> {
    let capacity = Capacity { frames: work.capacity.frames as u32, clips: work.capacity.clips };
    loop {
        let update = updates.position();
        let Some(members) = updates.next() else { return Err(None) };
        let lengths: Vec<u32> = members.iter().map(|d| frames[d.clip as usize]).collect();
        let draws: Vec<Draw> = members
            .iter()
            .map(|d| {
                let clip = &work.clips[d.clip as usize];
                let key = draw::clip_key(work.seed, u64::from(d.epoch), clip.sample);
                draw::draw(key, clip.frames as usize)
            })
            .collect();
        let scored: usize = draws.iter().map(|d| d.span.1 - d.span.0).sum();
        let norm = batch::norm(scored);
        let packed = pack(&lengths, capacity)?;
        for (k, group) in packed.iter().enumerate() {
            let loaded = group
                .iter()
                .map(|&i| {
                    let clip = load_clip(&work.clips[members[i].clip as usize].path)?;
                    let text: Vec<i32> = clip.ids.iter().map(|id| *id as i32).collect();
                    Ok((i, clip.mel, text))
                })
                .collect::<Result<Vec<_>, DataError>>()?;
            let clips: Vec<Clip<'_>> = loaded
                .iter()
                .map(|(i, mel, text)| Clip { mel, text, draw: draws[*i], noise: None, span: None })
                .collect();
            let mut batch = spent.recv().map_err(|_| None)?;
            batch.fill(&clips);
            let item = Item {
                update,
                epoch: members.first().map_or(0, |d| d.epoch),
                batch,
                norm,
                first: k == 0,
                last: k + 1 == packed.len(),
                frames: group.iter().map(|&i| lengths[i] as usize).sum(),
            };
            ready.send(Ok(item)).map_err(|_| None)?;
        }
    }
}
