//! Generation from a batch file, as an exported voice takes it: `clips.i.phoneme_ids` i64 `[P]`, perhaps `clips.i.scales` f32 `[3]` (of noise,
//! of durations, of their noise; else those of `config.json`), `clips.i.speaker` i64 `[1]`, `clips.i.noise_w` f32 `[P, 2]` and
//! `clips.i.noise` f32 `[F, inter]`, F as many as the durations give. Noise that is not given is drawn. Results `clips.i.wave` f32
//! `[F * hop]` and `clips.i.durations` i64 `[P]`, the frames of each phoneme.

use super::folder::Folder;
use super::inference::Scales;
use super::voice::{Said, Voice, frames};
use crate::error::RunError;
use crate::generate::{Generated, Generator, Job, Settings, Values};
use crate::recorded::{BatchFile, Spare};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use ambitus_models::clip_key;
use ambitus_models::piper::config::Config;
use ambitus_models::piper::speak::Noise;
use std::path::Path;

/// A clip of the file.
struct Wanted {
    ids: Vec<u32>,
    speaker: u32,
    scales: Scales,
    /// Of frames and of durations.
    noise: [Option<Vec<f32>>; 2],
    /// Frames at most.
    most: usize,
}

struct Clips {
    config: Config,
    seed: u64,
    clips: Vec<Wanted>,
}

impl Generator for Folder {
    fn job(&self, file: &Path, settings: &Settings, _spare: Spare) -> Result<Box<dyn Job>, RunError> {
        let mut file = BatchFile::open(file)?;
        let own = self.scales()?;
        let clips = (0..file.clips("phoneme_ids")?).map(|i| self.wanted(&mut file, i, own));
        let clips = clips.collect::<Result<_, _>>()?;
        Ok(Box::new(Clips { config: self.config.clone(), seed: settings.sampling.seed, clips }))
    }
}

impl Folder {
    fn wanted(&self, file: &mut BatchFile<'_>, i: usize, own: Scales) -> Result<Wanted, RunError> {
        let tensor = |leaf: &str| format!("clips.{i}.{leaf}");
        let (ids, _) = file.ids::<u32>(i, "phoneme_ids", &["ids"])?;
        let speaker = match file.contains(&tensor("speaker")) {
            true => match file.ids::<u32>(i, "speaker", &["1"])?.0[..] {
                [speaker] => speaker,
                ref all => return Err(file.bad(&tensor("speaker"), format!("is [{}], not [1]", all.len()))),
            },
            false => 0,
        };
        self.check(&ids, speaker).map_err(|why| file.bad(&format!("clips.{i}"), why))?;
        let scales = match file.contains(&tensor("scales")) {
            true => {
                let given = file.floats(&tensor("scales"), 3)?;
                let scales = Scales { noise: given[0], length: given[1], durations: given[2] };
                scales.check().map_err(|why| file.bad(&tensor("scales"), why))?;
                scales
            }
            false => own,
        };
        let of_durations = match file.contains(&tensor("noise_w")) {
            true => Some(file.floats(&tensor("noise_w"), 2 * ids.len())?),
            false => None,
        };
        let [_, mut most] = frames(&self.config, ids.len(), scales);
        let mut of_frames = None;
        if file.contains(&tensor("noise")) {
            let inter = self.config.inter;
            most = match file.shape(&tensor("noise"))?[..] {
                [frames, columns] if columns == inter && frames > 0 => frames,
                ref shape => {
                    return Err(file.bad(&tensor("noise"), format!("is {shape:?}, not [frames, {inter}]")));
                }
            };
            of_frames = Some(file.floats(&tensor("noise"), most * inter)?);
        }
        Ok(Wanted { ids, speaker, scales, noise: [of_frames, of_durations], most })
    }
}

impl Clips {
    fn voice(&self) -> Voice {
        let longest = self.clips.iter().map(|clip| clip.ids.len()).max().unwrap_or(1);
        let scales =
            self.clips.iter().map(|clip| clip.scales).reduce(|a, b| if a.length > b.length { a } else { b });
        Voice::new(&self.config, longest, scales.unwrap_or_default())
    }
}

impl Job for Clips {
    fn programs(&self, session: &mut Session, _cache: DType) -> Vec<Program> {
        self.voice().programs(session)
    }

    fn bytes(&self) -> u64 {
        let of_noise = |clip: &Wanted| clip.noise.iter().flatten().map(Vec::len).sum::<usize>();
        // What is given, and the result, which grows to twice its size.
        let clip = |clip: &Wanted| {
            4 * (of_noise(clip) + clip.ids.len())
                + 8 * clip.ids.len()
                + 8 * clip.most * self.config.spectra.hop
        };
        self.voice().bytes() + self.clips.iter().map(clip).sum::<usize>() as u64
    }

    fn less(&self) -> &'static str {
        "clips of fewer phonemes take less"
    }

    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError> {
        let (voice, mut results) = (self.voice(), Vec::new());
        for (i, clip) in self.clips.iter().enumerate() {
            let key = clip_key(self.seed, i as u64, 0);
            let [of_frames, of_durations] = clip.noise.each_ref().map(Option::as_deref);
            let said = Said {
                ids: &clip.ids,
                speaker: clip.speaker,
                scales: clip.scales,
                noise: of_frames.map_or(Noise::Drawn(key), Noise::Given),
                duration_noise: of_durations.map_or(Noise::Drawn(key), Noise::Given),
                most: clip.most,
            };
            let mut wave = Vec::new();
            let lasting = voice.speak(exec, &str::to_owned, &said, &mut |samples| {
                wave.extend_from_slice(samples);
                Ok(())
            })?;
            if lasting.cut || (of_frames.is_some() && lasting.frames() != clip.most) {
                let why = match (of_frames, lasting.cut) {
                    (Some(_), true) => format!("noise: has {} rows, and the phonemes last longer", clip.most),
                    (Some(_), false) => {
                        format!(
                            "noise: has {} rows, and the phonemes last {} frames",
                            clip.most,
                            lasting.frames()
                        )
                    }
                    (None, _) => {
                        format!("the phonemes last more than {} frames: say less at a time", clip.most)
                    }
                };
                return Err(RunError::Usage(format!("clips.{i}: {why}")));
            }
            let durations = lasting.each().map(|n| n as i64).collect();
            let name = |leaf: &str| format!("clips.{i}.{leaf}");
            let (samples, phonemes) = (vec![wave.len()], vec![clip.ids.len()]);
            results.push(Generated { name: name("wave"), shape: samples, values: Values::F32(wave) });
            results.push(Generated {
                name: name("durations"),
                shape: phonemes,
                values: Values::I64(durations),
            });
        }
        Ok(results)
    }
}
