//! Sound that is written while it is made: 16-bit WAV or FLAC, of one channel or several, to a file or to standard output.
//!
//! A file appears whole or not at all. What goes to a pipe cannot be mended afterwards: its header says that the length is not
//! known, as players of streams expect.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, StreamInfo};
use flacenc::config;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Fill, FrameBuf};
use tempfile::NamedTempFile;

use crate::atomic;
use crate::error::DataError;

/// Samples of a FLAC frame.
const BLOCK: usize = 4096;
/// Bytes of a WAV header.
const WAV_HEADER: u64 = 44;
/// The most bytes of a sound: sizes in the header have 32 bits.
const MOST_BYTES: u64 = u32::MAX as u64 - WAV_HEADER;

/// A sound that is being written.
pub struct SoundWriter {
    path: PathBuf,
    out: Out,
    form: Form,
    rate: u32,
    channels: u16,
    /// Of all channels.
    samples: u64,
}

/// Where it goes.
enum Out {
    File(BufWriter<NamedTempFile>),
    Pipe(Box<dyn Write>),
}

/// How it is written.
enum Form {
    Wav,
    Flac(Box<Flac>),
}

impl SoundWriter {
    /// Bytes that a sound being written takes, of any length.
    pub const BYTES: u64 = 1 << 20;

    /// Begins a file, FLAC where its name ends in `.flac`, else WAV. `channels`: up to 8, not 0.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path, rate: u32, channels: u16) -> Result<SoundWriter, DataError> {
        let flac = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("flac"));
        let file = atomic::temporary(path).map_err(|e| DataError::io(path, e))?;
        let form = if flac { Form::Flac(Box::new(Flac::new(rate, channels, path)?)) } else { Form::Wav };
        SoundWriter::begin(path, Out::File(BufWriter::new(file)), form, rate, channels)
    }

    /// Begins a WAV stream.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn stream(to: Box<dyn Write>, rate: u32, channels: u16) -> Result<SoundWriter, DataError> {
        SoundWriter::begin(Path::new("standard output"), Out::Pipe(to), Form::Wav, rate, channels)
    }

    fn begin(path: &Path, out: Out, form: Form, rate: u32, channels: u16) -> Result<SoundWriter, DataError> {
        let mut sound = SoundWriter { path: path.to_owned(), out, form, rate, channels, samples: 0 };
        let header = match &sound.form {
            Form::Wav => wav_header(rate, channels, u32::MAX - WAV_HEADER as u32),
            Form::Flac(flac) => flac.header().map_err(|why| DataError::file(path, why))?,
        };
        sound.write(&header)?;
        Ok(sound)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let written = match &mut self.out {
            Out::File(file) => file.write_all(bytes),
            // Whoever listens hears what there is.
            Out::Pipe(pipe) => pipe.write_all(bytes).and_then(|()| pipe.flush()),
        };
        written.map_err(|e| DataError::io(&self.path, e))
    }

    /// Adds samples (1 = full scale, clamped), of each channel in turn.
    ///
    /// # Errors
    /// Samples that are not finite, a full disk, more than the format holds.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), DataError> {
        if let Some(i) = samples.iter().position(|x| !x.is_finite()) {
            let why = format!("not written: sample {} is {}", self.samples + i as u64, samples[i]);
            return Err(DataError::file(&self.path, why));
        }
        self.samples += samples.len() as u64;
        if 2 * self.samples > MOST_BYTES {
            let why = "not written: more than 4 GiB of samples; cut the text".to_owned();
            return Err(DataError::file(&self.path, why));
        }
        let whole = |x: &f32| (x.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16;
        let bytes = match &mut self.form {
            Form::Wav => samples.iter().flat_map(|x| whole(x).to_le_bytes()).collect(),
            Form::Flac(flac) => {
                flac.pending.extend(samples.iter().map(|x| i32::from(whole(x))));
                flac.blocks(BLOCK).map_err(|why| DataError::file(&self.path, why))?
            }
        };
        self.write(&bytes)
    }

    /// Ends the sound and returns the samples of a channel.
    ///
    /// # Errors
    /// As [`SoundWriter::push`].
    pub fn finish(mut self) -> Result<u64, DataError> {
        let failed = |path: &Path, e: io::Error| DataError::io(path, e);
        let header = match &mut self.form {
            Form::Wav => wav_header(self.rate, self.channels, (2 * self.samples) as u32),
            Form::Flac(flac) => {
                let rest = flac.blocks(1).map_err(|why| DataError::file(&self.path, why))?;
                self.write(&rest)?;
                let Form::Flac(flac) = &mut self.form else { unreachable!("it is what it was") };
                flac.info.set_total_samples((self.samples / u64::from(self.channels)) as usize);
                flac.header().map_err(|why| DataError::file(&self.path, why))?
            }
        };
        let path = self.path;
        if let Out::File(file) = self.out {
            let mut file = file.into_inner().map_err(|e| failed(&path, e.into_error()))?;
            let whole = (|| {
                let file: &mut File = file.as_file_mut();
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&header)?;
                file.sync_data()
            })();
            whole.map_err(|e| failed(&path, e))?;
            file.persist(&path).map_err(|e| failed(&path, e.error))?;
        }
        Ok(self.samples / u64::from(self.channels))
    }
}

/// Returns the header of 16-bit PCM with `bytes` bytes of samples.
fn wav_header(rate: u32, channels: u16, bytes: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(WAV_HEADER as usize);
    out.extend(b"RIFF");
    out.extend((bytes + WAV_HEADER as u32 - 8).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16u32.to_le_bytes());
    // Bytes of a sample of all channels.
    let each = 2 * channels;
    // PCM.
    out.extend([1, channels].iter().flat_map(|n| n.to_le_bytes()));
    out.extend([rate, u32::from(each) * rate].iter().flat_map(|n| n.to_le_bytes()));
    // The last: bits of a sample of one channel.
    out.extend([each, 16].iter().flat_map(|n| n.to_le_bytes()));
    out.extend(b"data");
    out.extend(bytes.to_le_bytes());
    out
}

/// A FLAC stream, block by block.
struct Flac {
    config: Verified<config::Encoder>,
    info: StreamInfo,
    frame: FrameBuf,
    frames: usize,
    channels: usize,
    /// Samples of the next block, of each channel in turn.
    pending: Vec<i32>,
}

impl Flac {
    fn new(rate: u32, channels: u16, path: &Path) -> Result<Flac, DataError> {
        let refused = |why: String| DataError::file(path, format!("cannot be FLAC: {why}"));
        let config = config::Encoder::default().into_verified().map_err(|(_, e)| refused(e.to_string()))?;
        let channels = usize::from(channels);
        let mut info = StreamInfo::new(rate as usize, channels, 16).map_err(|e| refused(e.to_string()))?;
        // All blocks but the last have this size, which is how a stream of one size is marked.
        info.set_block_sizes(BLOCK, BLOCK).map_err(|e| refused(e.to_string()))?;
        // 0: not known.
        info.set_frame_sizes(0, 0).map_err(|e| refused(e.to_string()))?;
        let frame = FrameBuf::with_size(channels, BLOCK).map_err(|e| refused(e.to_string()))?;
        let pending = Vec::with_capacity(2 * channels * BLOCK);
        Ok(Flac { config, info, frame, frames: 0, channels, pending })
    }

    /// Returns `fLaC` and the one block of metadata.
    fn header(&self) -> Result<Vec<u8>, String> {
        let mut sink = ByteSink::new();
        self.info.write(&mut sink).map_err(|e| e.to_string())?;
        let info = sink.into_inner();
        // The last block of metadata, of kind 0, and its length.
        let mut out = b"fLaC\x80".to_vec();
        out.extend(&(info.len() as u32).to_be_bytes()[1..]);
        out.extend(info);
        Ok(out)
    }

    /// Encodes what is pending, a block at a time, while it is at least `least` samples.
    fn blocks(&mut self, least: usize) -> Result<Vec<u8>, String> {
        let mut sink = ByteSink::new();
        while self.pending.len() >= least * self.channels {
            let n = (self.pending.len() / self.channels).min(BLOCK);
            self.frame.resize(n);
            self.frame.fill_interleaved(&self.pending[..n * self.channels]).map_err(|e| e.to_string())?;
            let frame = flacenc::encode_fixed_size_frame(&self.config, &self.frame, self.frames, &self.info);
            frame.map_err(|e| e.to_string())?.write(&mut sink).map_err(|e| e.to_string())?;
            self.frames += 1;
            self.pending.drain(..n * self.channels);
        }
        Ok(sink.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audio::{AudioReader, load};

    /// What is written is what is read, in pieces of any size; nothing is there before the end.
    #[test]
    fn files_read_back() {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, n) in [("a.wav", 10_000), ("a.flac", 10_000), ("b.flac", 4096), ("c.flac", 1)] {
            let path = dir.path().join(name);
            let samples: Vec<f32> = (0..n).map(|i| 0.9 * (i as f32 * 0.05).sin()).collect();
            let mut sound = SoundWriter::create(&path, 24_000, 1).expect("can be made");
            for piece in samples.chunks(777) {
                sound.push(piece).expect("can be written");
                assert!(!path.exists());
            }
            assert_eq!(sound.finish().expect("ends"), n);
            let read = load(&path, 24_000, 10.0).expect("reads back");
            assert_eq!(read.len(), samples.len(), "{name}");
            let off = read.iter().zip(&samples).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Half a step, and a 32,767th is read as a 32,768th.
            assert!(off < 1.0 / 20_000.0, "{name}: {off}");
        }
        let dropped = SoundWriter::create(&dir.path().join("d.wav"), 24_000, 1).expect("can be made");
        drop(dropped);
        let mut sound = SoundWriter::create(&dir.path().join("d.wav"), 24_000, 1).expect("can be made");
        assert!(sound.push(&[0.0, f32::NAN]).is_err());
        drop(sound);
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 4, "nothing else is left");
    }

    /// Each channel reads back as it was, and both as their mean.
    #[test]
    fn channels_read_back() {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, n) in [("a.wav", 5000), ("a.flac", 5000), ("b.flac", 4096)] {
            let path = dir.path().join(name);
            let samples: Vec<f32> =
                (0..2 * n).map(|i| 0.4 * ((i / 2 * (1 + i % 2)) as f32 * 0.05).sin()).collect();
            let mut sound = SoundWriter::create(&path, 32_000, 2).expect("can be made");
            for piece in samples.chunks(778) {
                sound.push(piece).expect("can be written");
            }
            assert_eq!(sound.finish().expect("ends"), n as u64, "{name}");
            let read = |reader: AudioReader| {
                let (mut reader, mut all) = (reader, Vec::new());
                while let Some(chunk) = reader.next_chunk().expect("reads back") {
                    all.extend_from_slice(chunk);
                }
                all
            };
            let open = || AudioReader::open(&path).expect("opens");
            assert_eq!((open().info().channels, open().info().rate), (2, 32_000));
            let [left, right, mean] = [read(open().of_channel(0)), read(open().of_channel(1)), read(open())];
            // What is not there is the last that is.
            assert_eq!(read(open().of_channel(5)), right);
            for (t, pair) in samples.chunks(2).enumerate() {
                for (got, want) in
                    [(left[t], pair[0]), (right[t], pair[1]), (mean[t], (pair[0] + pair[1]) / 2.0)]
                {
                    assert!((got - want).abs() < 1.0 / 20_000.0, "{name}, {t}: {got}, not {want}");
                }
            }
            assert_eq!(left.len(), n, "{name}");
        }
    }
}
