//! Arguments of `ambitus codec`.

use ambitus_families::CODECS;
use ambitus_families::codec::{self, Codec, Vocoder};
use ambitus_families::error::RunError;
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
    /// Where the audio goes. A .safetensors file has `wave` (f32, samples; with --stereo channels by samples), or `mel` (f32, frames by
    /// channels) of a codec that makes codes of mel frames
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
        super::threads(self.threads)
    }

    /// Opens the codec.
    pub fn open(&self) -> Result<Box<dyn Codec>, RunError> {
        codec::open(CODECS, &self.codec, self.threads())
    }

    /// Opens the vocoder.
    pub fn open_vocoder(&self) -> Result<Box<dyn Vocoder>, RunError> {
        codec::open_vocoder(CODECS, &self.codec, self.threads())
    }
}

/// Returns the help of `--codec`.
fn kinds() -> String {
    let kinds = CODECS.iter().map(|kind| format!("{}: {}", kind.name(), kind.files()));
    format!("Folder with a codec or vocoder, {}", kinds.collect::<Vec<_>>().join("; or "))
}
