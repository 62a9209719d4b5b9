//! A frozen DVAE: sound to mel frames to codes, and codes to mel frames, on the CPU, in memory that does not grow with the sound.
//!
//! A program has room for a window of codes. Longer sound goes through it in windows that begin at whole codes and overlap by as many, on
//! both sides, as a code or its frames depend on; what is within reach of a cut is left to the neighbouring window. So the result is that
//! of the whole sound in one piece.

mod folder;
#[cfg(test)]
mod tests;

use crate::codec::programs::{Programs, Way};
use crate::codec::{self, Codebook, Codes, Kind, Mels, Spec, alone};
use crate::error::RunError;
use ambitus_data::DataError;
use ambitus_data::mel::{Front, Log, MelStream, Scale, Window};
use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::Executor;
use ambitus_models::common::codec::{DECODE, ENCODE};
use ambitus_models::dvae::config::Config;
use ambitus_models::dvae::model;
use folder::Folder;
use std::path::Path;

pub use folder::{STATISTICS, WEIGHTS, statistics};

/// Codes of a window: twelve seconds of the published shape.
const WINDOW: usize = 256;

/// The mel frames that codes are made of: `dvae_wav_to_mel` of coqui-tts 0.28. Every model has its own number of bands.
pub const FRONT: Front = Front {
    rate: 22_050,
    n_fft: 1024,
    window: Window::Hann(1024),
    hop: 256,
    bands: 80,
    range: [0.0, 8000.0],
    scale: Scale::Htk,
    slaney: true,
    power: true,
    log: Log::Clamped(1e-5),
};

/// The kind of codec, for the registry.
pub struct Dvae;

impl Kind for Dvae {
    fn name(&self) -> &'static str {
        "DVAE, of mel frames"
    }

    fn files(&self) -> &'static str {
        "dvae.pth and mel_stats.pth"
    }

    /// By the file of weights: it has no configuration.
    fn recognises(&self, dir: &Path) -> bool {
        dir.join(WEIGHTS).is_file()
    }

    fn open(&self, dir: &Path, threads: usize) -> Result<codec::Opened, RunError> {
        Ok(codec::Opened::Codec(Box::new(Codec::open(dir, threads)?)))
    }
}

/// A DVAE whose weights and work lie in one planned arena: that of the direction used last.
pub struct Codec {
    folder: Folder,
    spec: Spec,
    front: Front,
    /// Codes of a window.
    window: usize,
    programs: Programs,
}

impl Codec {
    /// Opens a folder with `dvae.pth` and `mel_stats.pth`, and plans. No weight is read before the first use.
    ///
    /// # Errors
    /// Names the file, or every tensor that does not fit.
    pub fn open(dir: &Path, threads: usize) -> Result<Codec, RunError> {
        Codec::open_with(dir, threads, WINDOW)
    }

    /// Opens a DVAE with windows of at least `codes` codes: more take more memory and overlap less. See [`Codec::open`].
    ///
    /// # Errors
    /// As [`Codec::open`].
    pub fn open_with(dir: &Path, threads: usize, codes: usize) -> Result<Codec, RunError> {
        let folder = Folder::open(dir)?;
        let cfg = &folder.config;
        let window = codes.max(2 * cfg.encoder_reach().max(cfg.decoder_reach()) + 1);
        let programs =
            Programs::plan(threads, |s| model::encode(s, cfg, window), |s| model::decode(s, cfg, window));
        let front = Front { bands: cfg.mels, ..FRONT };
        let codebooks = vec![Codebook { per_frame: 1, size: cfg.entries }];
        let spec = Spec { rate: front.rate, frame: cfg.rate() * front.hop, tail: 0, codebooks };
        Ok(Codec { folder, spec, front, window, programs })
    }

    /// Returns the number of codes that training uses of a clip of `samples` samples, ⌈L / 1024⌉ of the published shape: there is one
    /// more, ⌊L / 1024⌋ + 1, where the samples are whole codes.
    pub fn codes_of_clip(&self, samples: usize) -> usize {
        samples.div_ceil(self.spec.frame)
    }

    /// Returns the codes that training uses of a clip at the codec's rate, see [`Codec::codes_of_clip`].
    ///
    /// # Errors
    /// As [`codec::Codec::encode`].
    pub fn encode_clip(&mut self, samples: &[f32]) -> Result<Vec<u32>, RunError> {
        let mut codes = codec::Codec::encode(self, samples)?.layers.swap_remove(0);
        codes.truncate(self.codes_of_clip(samples.len()));
        Ok(codes)
    }
}

/// Tells a program with room for `frames` frames how many rows of each of its tables there are of `valid` frames.
fn write_tables(exec: &mut CpuExecutor, program: &str, frames: usize, valid: usize) -> Result<(), RunError> {
    alone::write_tables(exec, program, frames, |table| valid.div_ceil(table.stride))
}

impl codec::Codec for Codec {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        self.folder.fingerprint()
    }

    fn mels(&self) -> Option<Mels> {
        Some(Mels { rate: self.front.rate, hop: self.front.hop, channels: self.front.bands })
    }

    /// Returns the larger arena of the two directions, and a window's frames.
    fn bytes(&self) -> u64 {
        self.encode_bytes().max(self.programs.bytes(Way::Decode) + self.frames_bytes())
    }

    fn encode_bytes(&self) -> u64 {
        self.programs.bytes(Way::Encode) + self.frames_bytes()
    }

    fn close(&mut self) {
        self.programs.close();
    }

    fn encoding(&mut self) -> Result<Box<dyn codec::Encoding + '_>, RunError> {
        let (cfg, window) = (self.folder.config.clone(), self.window);
        let stream = MelStream::of(&self.front).divided_by(&self.folder.scale);
        let exec = self.programs.ready(Way::Encode, |exec| self.folder.tensors.load(exec))?;
        let encoding =
            Encoding { exec, cfg, window, stream, held: Vec::new(), start: 0, done: 0, codes: Vec::new() };
        Ok(Box::new(encoding))
    }

    fn decoding_of<'c>(
        &'c mut self,
        codes: &'c Codes,
        total: usize,
        seed: Option<u64>,
    ) -> Result<Box<dyn codec::Decoding + 'c>, RunError> {
        if seed.is_some() {
            let why = "this codec's decoder draws no noise; leave the seed out";
            return Err(RunError::Usage(why.to_owned()));
        }
        let (cfg, window) = (self.folder.config.clone(), self.window);
        let mel = vec![0.0; window * cfg.rate() * cfg.mels];
        let exec = self.programs.ready(Way::Decode, |exec| self.folder.tensors.load(exec))?;
        let ids = &codes.layers[0];
        Ok(Box::new(Decoding { exec, cfg, window, ids, total, start: 0, done: 0, mel }))
    }
}

impl Codec {
    /// Returns the bytes of the frames that are held besides the arena, while more arrive.
    fn frames_bytes(&self) -> u64 {
        let cfg = &self.folder.config;
        (8 * (self.window + 1) * cfg.rate() * cfg.mels + 64 * self.front.n_fft) as u64
    }
}

/// A sound being encoded.
struct Encoding<'c> {
    exec: &'c mut CpuExecutor,
    cfg: Config,
    window: usize,
    stream: MelStream,
    /// Mel frames from the code `start` on.
    held: Vec<f32>,
    start: usize,
    /// Codes that are known.
    done: usize,
    codes: Vec<u32>,
}

/// Samples whose frames are made before windows are looked at.
const PIECE: usize = 1 << 14;

impl codec::Encoding for Encoding<'_> {
    fn push(&mut self, samples: &[f32]) -> Result<(), RunError> {
        for piece in samples.chunks(PIECE) {
            self.stream.push(piece, &mut self.held);
            self.whole_windows()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Codes, RunError> {
        let stream = std::mem::replace(&mut self.stream, MelStream::of(&FRONT));
        stream.finish(&mut self.held).map_err(|samples| {
            let (rate, least) = (FRONT.rate, FRONT.min_samples());
            let why = format!("{samples} samples at {rate} Hz; mel frames need at least {least}");
            RunError::Data(DataError::Invalid(why))
        })?;
        self.whole_windows()?;
        let until = self.start + self.cfg.codes(self.held.len() / self.cfg.mels);
        if until > self.done {
            self.run(until)?;
        }
        Ok(Codes { layers: vec![self.codes] })
    }
}

impl Encoding<'_> {
    /// Encodes windows behind which there is more: their last codes wait for what is within their reach.
    fn whole_windows(&mut self) -> Result<(), RunError> {
        let (row, reach) = (self.cfg.rate() * self.cfg.mels, self.cfg.encoder_reach());
        while self.held.len() > self.window * row {
            let until = self.start + self.window - reach;
            self.run(until)?;
            let next = until - reach;
            self.held.drain(..(next - self.start) * row);
            self.start = next;
        }
        Ok(())
    }

    /// Encodes the first window of what is held, and keeps the codes `done..until`.
    fn run(&mut self, until: usize) -> Result<(), RunError> {
        let (cfg, frames) = (&self.cfg, self.window * self.cfg.rate());
        let mut mel = vec![0.0; frames * cfg.mels];
        let held = self.held.len().min(mel.len());
        mel[..held].copy_from_slice(&self.held[..held]);
        write_tables(self.exec, ENCODE, frames, held / cfg.mels)?;
        self.exec.write_f32(ENCODE, "mel", 0, &mel)?;
        self.exec.run(ENCODE, 0)?;
        let mut codes = vec![0.0; self.window];
        self.exec.read_f32(ENCODE, "codes", 0, &mut codes)?;
        let kept = &codes[self.done - self.start..until - self.start];
        if kept.iter().any(|c| *c as usize >= cfg.entries) {
            return Err(RunError::Model(
                "the codec gives numbers that are not finite; check the audio's samples and the codec's weights"
                    .to_owned(),
            ));
        }
        self.codes.extend(kept.iter().map(|c| *c as u32));
        self.done = until;
        Ok(())
    }
}

/// Codes being decoded to mel frames.
struct Decoding<'c> {
    exec: &'c mut CpuExecutor,
    cfg: Config,
    window: usize,
    ids: &'c [u32],
    /// Codes in all.
    total: usize,
    /// First code of the next window.
    start: usize,
    /// Codes whose frames were given.
    done: usize,
    /// `[frames, M]` of a window.
    mel: Vec<f32>,
}

impl codec::Decoding for Decoding<'_> {
    fn next_piece(&mut self) -> Result<Option<&[f32]>, RunError> {
        if self.done == self.total {
            return Ok(None);
        }
        let (start, reach, rate) = (self.start, self.cfg.decoder_reach(), self.cfg.rate());
        let valid = self.window.min(self.total - start);
        let until = if start + valid == self.total { self.total } else { start + valid - reach };
        write_tables(self.exec, DECODE, self.window * rate, valid * rate)?;
        let mut ids = vec![-1; self.window];
        ids.iter_mut().zip(&self.ids[start..start + valid]).for_each(|(id, code)| *id = *code as i32);
        self.exec.write_i32(DECODE, "codes", 0, &ids)?;
        self.exec.run(DECODE, 0)?;
        self.exec.read_f32(DECODE, "mel", 0, &mut self.mel)?;
        let row = rate * self.cfg.mels;
        let piece = &self.mel[(self.done - start) * row..(until - start) * row];
        self.done = until;
        self.start = until.saturating_sub(reach);
        Ok(Some(piece))
    }
}
