//! Decoding through symphonia, with its failures turned into reasons.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader, Track};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::default::formats::{
    AdtsReader, FlacReader, IsoMp4Reader, MkvReader, MpaReader, OggReader, WavReader,
};

use super::input::{AudioInput, Medium};
use super::sniff::{Container, check_format, check_vorbis_tables, sniff};
use super::{MAX_SAMPLE, READER_BYTES};
use crate::error::{AudioFault, DataError};
use crate::guard;

/// What the header of an audio file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioInfo {
    /// Container.
    pub container: Container,
    /// Samples per second and channel.
    pub rate: u32,
    /// Channels; they are averaged, or one is taken ([`AudioReader::of_channel`]).
    pub channels: usize,
    /// Samples per channel, where the header says so.
    pub frames: Option<u64>,
}

/// Measured while decoding, over all channels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AudioStats {
    /// Samples per channel so far.
    pub frames: u64,
    /// Largest magnitude, 1 = full scale.
    pub peak: f32,
    /// Runs of at least [`AudioStats::CLIP_RUN`] samples at full scale in one channel.
    pub clipped_runs: u64,
}

impl AudioStats {
    /// Consecutive samples at full scale that count as clipping; one or two also occur in well-normalised audio.
    pub const CLIP_RUN: u32 = 3;
    /// Magnitude that counts as full scale.
    pub const FULL_SCALE: f32 = 0.9995;
}

/// A file being decoded to mono (mean of the channels, or one of them), in chunks. Memory is bounded by [`READER_BYTES`].
pub struct AudioReader {
    input: AudioInput,
    info: AudioInfo,
    stats: AudioStats,
    format: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// The one that is taken, counted from 0.
    channel: Option<usize>,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    run: Vec<u32>,
    /// The last bytes of the last packet, to find the end of an mp3 stream in its file.
    last_bytes: Vec<u8>,
    ended: bool,
}

/// A file from a byte on: what precedes it (an ID3 tag) does not exist for the reader.
struct Tail {
    file: Box<dyn Medium>,
    start: u64,
    length: u64,
}

impl Read for Tail {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Seek for Tail {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => SeekFrom::Start(self.start.saturating_add(at)),
            other => other,
        };
        let at = self.file.seek(to)?;
        at.checked_sub(self.start)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the start"))
    }
}

impl MediaSource for Tail {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.length)
    }
}

/// Runs decoder code; a panic in it becomes a fault of the file.
fn guarded<T>(work: impl FnOnce() -> Result<T, SymphoniaError>) -> Result<T, SymphoniaError> {
    guard::guarded(work).unwrap_or(Err(SymphoniaError::DecodeError("the decoder gave up on it")))
}

/// What is said of sound in a container that is read, from an encoder that is not.
const CODEC: &str =
    "its sound is coded as nothing here decodes (opus, ac3, he-aac?); convert it to wav or flac";
/// Bytes of a FLAC file beside its samples: pictures and tags. A reader looks for samples to the file's end, however far that is.
const FLAC_BESIDE: u64 = 64 << 20;
/// Bytes by which the end of the last packet is found again.
const MARK: usize = 32;
/// Longest layer III frame, bytes (320 kbit/s at 32 kHz, padded), with an ID3v1 tag after it.
const MP3_TAIL: u64 = 1441 + 128;

/// Returns whether a frame header follows the last whole frame of an mp3 file: MPEG streams have no declared end, and the
/// decoder takes a cut frame for the end.
fn ends_within_frame(input: &AudioInput, last: &[u8]) -> bool {
    let Ok((mut file, length)) = input.open() else { return false };
    let mut tail = Vec::new();
    let from = length.saturating_sub(MP3_TAIL + MARK as u64);
    if file.seek(SeekFrom::Start(from)).is_err() || file.read_to_end(&mut tail).is_err() || last.is_empty() {
        return false;
    }
    let Some(at) = tail.windows(last.len()).rposition(|w| w == last) else { return false };
    matches!(tail[at + last.len()..], [0xff] | [0xff, 0xe0..=0xff, ..])
}

fn opening_fault(error: SymphoniaError) -> AudioFault {
    match error {
        SymphoniaError::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            AudioFault::Truncated("it ends within the header".into())
        }
        SymphoniaError::Unsupported(what) => AudioFault::Unsupported(what.into()),
        other => AudioFault::Header(other.to_string()),
    }
}

impl AudioReader {
    /// Opens a regular file and checks its header.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::read(AudioInput::File(path.to_owned()))
    }

    /// Opens a file, or one that lies in memory, and checks its header.
    pub fn read(input: AudioInput) -> Result<Self, DataError> {
        let (file, length) = input.open()?;
        Self::checked(&input, file, length).map_err(|fault| DataError::audio(input.name(), fault))
    }

    fn checked(input: &AudioInput, mut file: Box<dyn Medium>, length: u64) -> Result<Self, AudioFault> {
        let sniffed = sniff(&mut *file, length)?;
        file.seek(SeekFrom::Start(sniffed.start))
            .map_err(|e| AudioFault::Unsupported(format!("cannot be read ({e})")))?;
        let tail = Tail { file, start: sniffed.start, length: length - sniffed.start };
        let stream = MediaSourceStream::new(Box::new(tail), Default::default());
        let options = FormatOptions::default();
        let format = guarded(|| {
            Ok::<Box<dyn FormatReader>, _>(match sniffed.container {
                Container::Wav => Box::new(WavReader::try_new(stream, options)?),
                Container::Flac => Box::new(FlacReader::try_new(stream, options)?),
                Container::Mp3 => Box::new(MpaReader::try_new(stream, options)?),
                Container::Ogg => Box::new(OggReader::try_new(stream, options)?),
                Container::Mp4 => Box::new(IsoMp4Reader::try_new(stream, options)?),
                Container::Mkv => Box::new(MkvReader::try_new(stream, options)?),
                Container::Adts => Box::new(AdtsReader::try_new(stream, options)?),
            })
        })
        .map_err(opening_fault)?;
        let is_audio = |track: &&Track| track.codec_params.as_ref().is_some_and(|p| p.audio().is_some());
        let track = match (sniffed.container, format.tracks()) {
            // Beside pictures.
            (Container::Mp4 | Container::Mkv, tracks) => tracks.iter().find(is_audio),
            (_, [track]) => Some(track),
            (_, tracks) => {
                return Err(AudioFault::Unsupported(format!("{} tracks in one file", tracks.len())));
            }
        };
        let track = track.ok_or_else(|| AudioFault::Unsupported("no audio track in it".into()))?;
        let params = track
            .codec_params
            .as_ref()
            .and_then(|p| p.audio())
            .ok_or_else(|| AudioFault::Unsupported("no audio track".into()))?;
        let rate = params.sample_rate.unwrap_or(0);
        let channels = params.channels.as_ref().map_or(0, |c| c.count());
        check_format(rate, channels)?;
        if sniffed.container == Container::Ogg {
            check_vorbis_tables(params.extra_data.as_deref().unwrap_or_default())?;
        }
        // Trimming encoder padding needs a true length; an estimated one would cut off audio.
        let trim = sniffed.counted || sniffed.container != Container::Mp3;
        let options = AudioDecoderOptions::default().gapless(trim).verify(true);
        let decoder = guarded(|| symphonia::default::get_codecs().make_audio_decoder(params, &options));
        let decoder = decoder.map_err(|error| match error {
            SymphoniaError::Unsupported(_) => AudioFault::Unsupported(CODEC.into()),
            other => opening_fault(other),
        })?;
        let info = AudioInfo {
            container: sniffed.container,
            rate,
            channels,
            frames: track.num_frames.filter(|_| sniffed.counted),
        };
        if let Some(frames) = info.frames.filter(|_| info.container == Container::Flac)
            && length > frames.saturating_mul(4 * channels as u64).saturating_add(FLAC_BESIDE)
        {
            return Err(AudioFault::Header(format!("{frames} samples declared in {length} bytes")));
        }
        let track = track.id;
        Ok(Self {
            input: input.clone(),
            info,
            stats: AudioStats::default(),
            format,
            decoder,
            track,
            channel: None,
            interleaved: Vec::new(),
            mono: Vec::new(),
            run: vec![0; channels],
            last_bytes: Vec::new(),
            ended: false,
        })
    }

    /// Takes one channel, counted from 0, in place of the mean; the last where there are fewer.
    pub fn of_channel(self, channel: usize) -> Self {
        Self { channel: Some(channel), ..self }
    }

    /// Returns what the header says.
    pub fn info(&self) -> AudioInfo {
        self.info
    }

    /// Returns what is measured so far; complete once [`next_chunk`](Self::next_chunk) has returned `None`.
    pub fn stats(&self) -> AudioStats {
        self.stats
    }

    /// Returns the next mono samples at the file's own rate, or `None` at a proper end. After an error the file is unusable.
    pub fn next_chunk(&mut self) -> Result<Option<&[f32]>, DataError> {
        match self.advance() {
            Ok(true) => Ok(Some(&self.mono)),
            Ok(false) => Ok(None),
            Err(fault) => {
                self.ended = true;
                Err(DataError::audio(self.input.name(), fault))
            }
        }
    }

    fn seconds(&self) -> f64 {
        self.stats.frames as f64 / f64::from(self.info.rate)
    }

    fn advance(&mut self) -> Result<bool, AudioFault> {
        if self.ended {
            return Ok(false);
        }
        loop {
            let packet = match guarded(|| self.format.next_packet()) {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(SymphoniaError::IoError(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    break;
                }
                Err(SymphoniaError::ResetRequired) => {
                    return Err(AudioFault::Unsupported("several streams chained in one file".into()));
                }
                Err(other) => return Err(self.damaged(&other)),
            };
            if packet.track_id != self.track {
                continue;
            }
            if packet.data.len() > READER_BYTES {
                return Err(AudioFault::Header("an absurdly large packet".into()));
            }
            self.last_bytes.clear();
            self.last_bytes.extend_from_slice(&packet.data[packet.data.len().saturating_sub(MARK)..]);
            self.interleaved.clear();
            let (decoder, interleaved) = (&mut self.decoder, &mut self.interleaved);
            let format = guarded(|| {
                let decoded = decoder.decode(&packet)?;
                decoded.copy_to_vec_interleaved(interleaved);
                Ok((decoded.spec().rate(), decoded.spec().channels().count()))
            });
            let format = match format {
                Ok(format) => format,
                Err(other) => return Err(self.damaged(&other)),
            };
            if self.interleaved.is_empty() {
                continue;
            }
            if format != (self.info.rate, self.info.channels) {
                return Err(AudioFault::Unsupported(format!(
                    "it changes from {} Hz x {} to {} Hz x {} at {:.2} s",
                    self.info.rate,
                    self.info.channels,
                    format.0,
                    format.1,
                    self.seconds()
                )));
            }
            self.mix()?;
            return Ok(true);
        }
        self.ended = true;
        if let Some(declared) = self.info.frames
            && self.stats.frames < declared
        {
            return Err(AudioFault::Truncated(format!(
                "{declared} samples declared, {} there",
                self.stats.frames
            )));
        }
        if self.stats.frames == 0 {
            return Err(AudioFault::Empty);
        }
        if self.info.container == Container::Mp3 && ends_within_frame(&self.input, &self.last_bytes) {
            return Err(AudioFault::Truncated("it ends within a frame".into()));
        }
        if self.decoder.finalize().verify_ok == Some(false) {
            return Err(AudioFault::Damaged {
                seconds: self.seconds(),
                reason: "the checksum of the audio does not match".into(),
            });
        }
        Ok(false)
    }

    fn damaged(&self, error: &SymphoniaError) -> AudioFault {
        AudioFault::Damaged { seconds: self.seconds(), reason: error.to_string() }
    }

    /// Averages channels into `mono`, or takes one, with the checks and counts per sample.
    fn mix(&mut self) -> Result<(), AudioFault> {
        let channels = self.info.channels;
        let scale = 1.0 / channels as f32;
        self.mono.clear();
        for frame in self.interleaved.chunks_exact(channels) {
            let mut sum = 0.0;
            for (&x, run) in frame.iter().zip(&mut self.run) {
                let magnitude = x.abs();
                if magnitude.is_nan() || magnitude > MAX_SAMPLE {
                    return Err(AudioFault::Sample {
                        value: x,
                        seconds: (self.stats.frames + self.mono.len() as u64) as f64
                            / f64::from(self.info.rate),
                    });
                }
                self.stats.peak = self.stats.peak.max(magnitude);
                if magnitude >= AudioStats::FULL_SCALE {
                    *run += 1;
                    self.stats.clipped_runs += u64::from(*run == AudioStats::CLIP_RUN);
                } else {
                    *run = 0;
                }
                sum += x;
            }
            self.mono.push(self.channel.map_or(sum * scale, |c| frame[c.min(channels - 1)]));
        }
        self.stats.frames += self.mono.len() as u64;
        Ok(())
    }
}
