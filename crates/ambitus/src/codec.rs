//! `ambitus codec`: audio to codes and back, mel frames to audio.

use crate::terminal;
use ambitus_families::CODECS;
use ambitus_families::codec::{self, Codec, Vocoder};
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum CodecCommand {
    /// Make codes of an audio file (wav, flac, mp3, ogg; any rate, any length): JSON with sample_rate, samples, codes
    #[command(
        after_help = "Example:\n  ambitus codec encode --codec snac_24khz --audio voice.wav --out voice.json"
    )]
    Encode(EncodeArgs),
    /// Make sound of codes, or of mel frames: a 16-bit wav file, or numbers as they are
    #[command(
        after_help = "Examples:\n  ambitus codec decode --codec snac_24khz --codes voice.json --out again.wav\n  ambitus codec decode --codec vocos-mel-24khz --mel frames.safetensors --out voice.wav"
    )]
    Decode(DecodeArgs),
}

#[derive(Args)]
pub struct FolderArgs {
    #[arg(long, value_name = "DIR", help = kinds())]
    pub codec: PathBuf,
    /// Threads: more are faster and take a little more memory; same numbers [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
}

#[derive(Args)]
pub struct EncodeArgs {
    #[command(flatten)]
    pub codec: FolderArgs,
    /// Audio file, or `wave` (f32, one axis) of a .safetensors file at the codec's own rate; it is read in pieces, so memory does not
    /// grow with its length
    #[arg(long, value_name = "FILE")]
    pub audio: PathBuf,
    /// Code both channels apart, as stereo models have them: two rows a codebook, left and right. A .safetensors file then has `wave`
    /// [2, n]
    #[arg(long)]
    pub stereo: bool,
    /// Where the codes go. A .safetensors file has `codes` i64 [codebooks, frames], or `codes.0`, `codes.1` … where codebooks
    /// have several codes a frame
    #[arg(long, value_name = "CODES.json")]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct DecodeArgs {
    #[command(flatten)]
    pub codec: FolderArgs,
    /// Codes as `encode` writes them, in either form; without `samples`, whole frames are written
    #[arg(long, value_name = "CODES.json", required_unless_present = "mel", conflicts_with = "mel")]
    pub codes: Option<PathBuf>,
    /// Mel frames, for a vocoder: `mel` (f32, frames by channels) of a .safetensors file
    #[arg(long, value_name = "MEL.safetensors")]
    pub mel: Option<PathBuf>,
    /// Where the audio goes. A .safetensors file has `wave` (f32, one axis), or `mel` (f32, frames by channels) of a codec that makes codes
    /// of mel frames
    #[arg(long, value_name = "FILE.wav")]
    pub out: PathBuf,
    /// Let the decoder's noise blocks add noise drawn from this seed: a little more breath for about a tenth more arithmetic [default:
    /// they add nothing]
    #[arg(long, value_name = "SEED", conflicts_with = "mel")]
    pub noise: Option<u64>,
    /// The codes are of two channels, as `encode --stereo` writes them
    #[arg(long, conflicts_with_all = ["mel", "noise"])]
    pub stereo: bool,
}

impl FolderArgs {
    fn threads(&self) -> usize {
        crate::args::threads(self.threads)
    }

    fn open(&self) -> Result<Box<dyn Codec>, RunError> {
        codec::open(CODECS, &self.codec, self.threads())
    }

    fn open_vocoder(&self) -> Result<Box<dyn Vocoder>, RunError> {
        codec::open_vocoder(CODECS, &self.codec, self.threads())
    }
}

/// Returns the help of `--codec`.
fn kinds() -> String {
    let kinds = CODECS.iter().map(|kind| format!("{}: {}", kind.name(), kind.files()));
    format!("Folder with a codec or vocoder, {}", kinds.collect::<Vec<_>>().join("; or "))
}

pub fn run(command: &CodecCommand) -> Result<(), RunError> {
    match command {
        CodecCommand::Encode(a) => {
            let mut codec = a.codec.open()?;
            let file = match a.stereo {
                true => codec::encode_stereo_file(&mut *codec, &a.audio)?,
                false => codec::encode_file(&mut *codec, &a.audio)?,
            };
            file.write(&a.out)?;
            let count: usize = file.codes.iter().map(Vec::len).sum();
            said(count as u64, "codes", &a.out, codec.encode_bytes());
        }
        CodecCommand::Decode(a) => {
            let (samples, bytes) = match (&a.codes, &a.mel) {
                (Some(codes), _) if a.stereo => {
                    let mut both = [a.codec.open()?, a.codec.open()?];
                    let [left, right] = both.each_mut().map(|codec| &mut **codec);
                    (codec::decode_stereo_file([left, right], codes, &a.out)?, 2 * both[0].bytes())
                }
                (Some(codes), _) => {
                    let mut codec = a.codec.open()?;
                    (codec::decode_file(&mut *codec, codes, &a.out, a.noise)?, codec.bytes())
                }
                (None, Some(mel)) => codec::decode_mel_file(&mut *a.codec.open_vocoder()?, mel, &a.out)?,
                (None, None) => return Err(RunError::Usage("give --codes or --mel".to_owned())),
            };
            said(samples, "samples", &a.out, bytes);
        }
    }
    Ok(())
}

fn said(count: u64, what: &str, out: &std::path::Path, bytes: u64) {
    terminal::message(&format!("{count} {what} in {}; the codec took {}", out.display(), ByteSize(bytes)));
}
