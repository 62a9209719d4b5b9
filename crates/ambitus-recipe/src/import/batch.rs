//! The batch: what one update sees, over all devices, micro-batches and ranks.

use super::judge::Judge;
use super::world::World;
use super::{Origin, Verdict};
use crate::recipe::RecipeError;

/// Above this many clips a device, frames were probably meant: usual are 3200 and 38400 of them.
const MANY_CLIPS: u64 = 256;
/// The recipe's own bound on counts.
const MOST: u64 = 1 << 31;
/// What an update is the product of: keys of the batch, then those of the ranks.
const FACTORS: &[&str] = &[
    "per_device",
    "accumulation",
    "batch_size_type",
    "split_batches",
    "num_processes",
    "nproc_per_node",
    "num_machines",
    "parallel.dp_replicate_size",
    "parallel.dp_shard_size",
];
/// TrainingArguments' own batch.
const PER_DEVICE: u64 = 8;

/// Returns the effective batch in words, where the files say one.
///
/// # Errors
/// Counts out of range.
pub(super) fn batch(j: &mut Judge, world: &World, origin: &Origin) -> Result<Option<String>, RecipeError> {
    let given = j.get("per_device");
    let accumulated = j.get("accumulation").map(|g| g.count(1, MOST)).transpose()?;
    if given.is_none() && !origin.arguments && accumulated.is_none() {
        for id in ["batch_size_type", "split_batches", "max_samples"] {
            j.nothing(id, "no batch stands beside it");
        }
        return Ok(None);
    }
    let per_device = given.map(|g| g.count(1, MOST)).transpose()?;
    let bound = j.get("max_samples").map(|g| g.count(1, MOST)).transpose()?;
    let frames = match j.get("batch_size_type") {
        None => origin.counts_frames,
        Some(g) => match g.text()?.as_str() {
            "frame" | "frames" => true,
            "sample" | "samples" => false,
            _ => return Err(g.bad(format!("`{}` is not frame or sample", g.shown()))),
        },
    };
    match bound {
        Some(64) => j.default("max_samples", "micro_batch.clips", "a micro-batch holds at most 64 clips"),
        Some(n) if frames => j.used("max_samples", "micro_batch", format!("{{clips: {n}}}")),
        _ => j.nothing("max_samples", "it bounds batches of frames only"),
    }
    if let Some(g) = j.code(FACTORS) {
        let why = format!("not known, because {} is code: write `batch:` in the recipe", g.full());
        for id in FACTORS.iter().take(4) {
            j.say_of(id, Some("batch"), Verdict::Ask(format!("the effective batch is {why}")));
        }
        j.note(Some("batch"), format!("effective batch: {why}"));
        return Ok(None);
    }
    let unit = if frames { "frames" } else { "clips" };
    let all = j.get("split_batches").map(|g| g.flag()).transpose()? == Some(true);
    let ranks = if all { 1 } else { world.ranks.unwrap_or(1) };
    let (n, m) = (per_device.unwrap_or(PER_DEVICE), accumulated.unwrap_or(1));
    let update = n.checked_mul(m).and_then(|x| x.checked_mul(ranks)).filter(|x| *x <= MOST);
    let key = given.or(j.get("accumulation"));
    let update = match (update, key) {
        (Some(update), _) => update,
        (None, Some(g)) => {
            let product = format!("{n} per device × {m} accumulated × {ranks} ranks");
            return Err(g.bad(format!("{product} is more than {MOST}")));
        }
        // Ranks alone are bounded far below.
        (None, None) => return Ok(None),
    };
    let of_ranks = match (all, world.ranks) {
        (true, _) => "split over the ranks".to_owned(),
        (_, Some(1)) => "1 rank".to_owned(),
        (_, Some(n)) => format!("{n} ranks"),
        (_, None) => "1 rank (nothing says more)".to_owned(),
    };
    let own = if per_device.is_none() { " (transformers' default)" } else { "" };
    let words = format!("{n} {unit} per device{own} × {m} accumulated × {of_ranks} = {update} {unit}");
    let value = format!("{{{unit}: {update}}}");
    if !frames && n > MANY_CLIPS {
        j.ask(
            "per_device",
            Some("batch"),
            &format!(
                "{n} clips at once on one device: were frames meant? As it stands the recipe says `batch: {value}`; for \
                 frames write `batch: {{frames: {update}}}`"
            ),
        );
    }
    let of = key.map_or_else(|| "transformers' default".to_owned(), |g| g.from());
    j.line("batch", &value, format!("{words}; {of}"));
    for id in FACTORS.iter().take(4) {
        j.says(id, "batch", format!("batch: {value}; what of it is computed at once, the plan chooses"));
    }
    Ok(Some(words))
}
