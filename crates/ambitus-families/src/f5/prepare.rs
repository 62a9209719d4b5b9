//! Mel frames and text ids of audio.

use crate::console::Console;
use crate::error::RunError;
use crate::prepare::{
    Bound, Job, Made, PREPARE_THREADS, Preparer, Room, What, limited, prepare_options, sets, shortest, shown,
};
use ambitus_data::mel::SAMPLE_RATE;
use ambitus_data::prepare::mel_lengths;
use ambitus_data::{Source, Tokenizer, prepare};

/// Prepares mels.
pub struct Mels {
    /// Of the model.
    pub tokenizer: Tokenizer,
}

impl Preparer for Mels {
    fn read(&self, job: &Job<'_>, console: &mut dyn Console) -> Result<Made, RunError> {
        let data = sets(job.recipe)?;
        let (options, tokenizer) = (prepare_options(job.recipe, SAMPLE_RATE), &self.tokenizer);
        let room = Room::new(job, PREPARE_THREADS);
        let fixed = shortest(&options).fixed_bound(tokenizer);
        let source = room.read(fixed, Source::read(&data, &options.cache, room.left(fixed)))?;
        let bytes = limited(&options, |o| room.process + o.memory_bound(tokenizer, &source));
        let what = match room.too_small(bytes(job.recipe.data.max_seconds), &source)? {
            Some(why) => {
                What::Lengths(Box::new(mel_lengths(&source, tokenizer, &options, &shown(console))?), why)
            }
            None => What::Clips(Box::new(prepare(&source, tokenizer, &options, &shown(console))?)),
        };
        Ok(Made::new(what, job.recipe, &bytes))
    }

    fn bound<'a>(&'a self, job: &Job<'_>, held: u64) -> Result<Bound<'a>, RunError> {
        let room = Room::new(job, PREPARE_THREADS);
        let beside = room.process + held;
        Ok(limited(&prepare_options(job.recipe, SAMPLE_RATE), move |o| {
            beside + o.fixed_bound(&self.tokenizer)
        }))
    }

    fn stays(&self) -> u64 {
        self.tokenizer.dictionary_pages()
    }
}
