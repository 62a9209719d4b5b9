//! What a run's budget is enough for when the model speaks (`ambitus say`): how much at a time, and how fast.

use crate::inference::{Held, InferencePlan};
use crate::resolved::Resolved;
use ambitus_compile::plan::report;
use ambitus_data::SoundWriter;
use ambitus_families::error::RunError;
use ambitus_families::speech::Speaker;
use ambitus_ir::target::Packed;
use ambitus_recipe::size::ByteSize;
use serde::Serialize;

/// Halvings of the seconds between what fits and what does not.
const HALVINGS: usize = 6;

/// Speech within a budget.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speaking {
    /// Seconds that are made at a time, at most; 0: a second does not fit.
    pub seconds: f64,
    /// Planned bytes of the process, or of the card; of one second where that does not fit.
    pub peak_bytes: u64,
    /// Of these, keys and values.
    pub cache_bytes: u64,
    /// Predicted seconds of speech that are made in a second, without codec or vocoder.
    pub per_second: f64,
}

impl Resolved {
    /// Returns how much the model can say at a time within the run's budget, in what it is trained in; `None` for models that do not
    /// speak, and long ones.
    ///
    /// # Errors
    /// From planning; files of a codec or vocoder.
    pub fn speaking(&self) -> Result<Option<Speaking>, RunError> {
        let speaker = self.model.opened.speaker().filter(|s| s.example().is_some());
        let Some(speaker) = speaker.filter(|_| !self.asked.is_long) else { return Ok(None) };
        let most = speaker.most_seconds();
        let whole = self.speaking_for(speaker, most)?;
        if whole.peak_bytes <= self.budget {
            return Ok(Some(whole));
        }
        let mut found = Speaking { seconds: 0.0, ..self.speaking_for(speaker, 1.0)? };
        if found.peak_bytes > self.budget {
            return Ok(Some(found));
        }
        let (mut fits, mut too_much) = (1.0, most);
        for _ in 0..HALVINGS {
            let between = (fits + too_much) / 2.0;
            let tried = self.speaking_for(speaker, between)?;
            match tried.peak_bytes <= self.budget {
                true => (fits, found) = (between, tried),
                false => too_much = between,
            }
        }
        Ok(Some(Speaking { seconds: fits, ..found }))
    }

    fn speaking_for(&self, speaker: &dyn Speaker, seconds: f64) -> Result<Speaking, RunError> {
        let speech = speaker.of_length(seconds, self.device.threads())?;
        let held = Held { before: 0, then: speech.bytes() + SoundWriter::BYTES };
        let precision = self.plan.shape.session.precision;
        let plan = InferencePlan::of(&*speech.programs(), precision, held, &self.device)?;
        let target = &Packed { target: self.device.target(), rows: self.plan.shape.clip_rows };
        let takes = |(name, times): (String, f64)| {
            let program = plan.planned.program(&name);
            times * program.map_or(0.0, |p| report::seconds(&p.program, target))
        };
        let takes: f64 = speech.runs().into_iter().map(takes).sum();
        let InferencePlan { peak_bytes, cache_bytes, .. } = plan;
        Ok(Speaking { seconds, peak_bytes, cache_bytes, per_second: seconds / takes.max(1e-9) })
    }

    /// Describes [`Resolved::speaking`] for people.
    ///
    /// # Errors
    /// As it.
    pub fn describe_speaking(&self) -> Result<Option<String>, RunError> {
        let Some(s) = self.speaking()? else { return Ok(None) };
        let peak = ByteSize(s.peak_bytes);
        if s.seconds == 0.0 {
            return Ok(Some(format!(
                "  it cannot speak within this budget: a second of speech needs {peak}"
            )));
        }
        let cache = match s.cache_bytes {
            0 => String::new(),
            bytes => format!(", {} of them keys and values", ByteSize(bytes)),
        };
        Ok(Some(format!(
            "  it speaks (ambitus say) up to {:.0} s at a time within this budget, in {peak}{cache}: about {:.2} s of speech a second",
            s.seconds, s.per_second
        )))
    }
}
