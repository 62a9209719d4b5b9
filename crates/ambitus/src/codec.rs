//! `ambitus codec`: audio to codes and back.

use crate::terminal;
use ambitus_families::CODECS;
use ambitus_families::codec::{self, Codec};
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum CodecCommand {
    /// Codes of an audio file (wav, flac, mp3, ogg; any rate, any length), as JSON: sample_rate, samples, layers
    #[command(
        after_help = "Example:\n  ambitus codec encode --codec snac_24khz --audio voice.wav --out voice.json"
    )]
    Encode(EncodeArgs),
    /// A 16-bit wav file of codes
    #[command(
        after_help = "Example:\n  ambitus codec decode --codec snac_24khz --codes voice.json --out again.wav"
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
    /// Audio file; it is read in pieces, so memory does not grow with its length
    #[arg(long, value_name = "FILE")]
    pub audio: PathBuf,
    /// Where the codes go
    #[arg(long, value_name = "CODES.json")]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct DecodeArgs {
    #[command(flatten)]
    pub codec: FolderArgs,
    /// Codes as `encode` writes them; without `samples`, whole frames are written
    #[arg(long, value_name = "CODES.json")]
    pub codes: PathBuf,
    /// Where the audio goes
    #[arg(long, value_name = "FILE.wav")]
    pub out: PathBuf,
    /// Let the decoder's noise blocks add noise drawn from this seed: a little more breath for about a tenth more arithmetic [default:
    /// they add nothing]
    #[arg(long, value_name = "SEED")]
    pub noise: Option<u64>,
}

impl FolderArgs {
    fn open(&self) -> Result<Box<dyn Codec>, RunError> {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        codec::open(CODECS, &self.codec, self.threads.unwrap_or_else(all))
    }
}

/// Returns the help of `--codec`.
fn kinds() -> String {
    let kinds = CODECS.iter().map(|kind| format!("{}: {}", kind.name(), kind.files()));
    format!("Folder with a codec, {}", kinds.collect::<Vec<_>>().join("; or "))
}

pub fn run(command: &CodecCommand) -> Result<(), RunError> {
    match command {
        CodecCommand::Encode(a) => {
            let mut codec = a.codec.open()?;
            let codes = codec::encode_file(&mut *codec, &a.audio)?;
            codes.write(&a.out)?;
            let count: usize = codes.layers.iter().map(Vec::len).sum();
            said(count, "codes", &a.out, codec.encode_bytes());
        }
        CodecCommand::Decode(a) => {
            let mut codec = a.codec.open()?;
            let samples = codec::decode_file(&mut *codec, &a.codes, &a.out, a.noise)?;
            said(samples as usize, "samples", &a.out, codec.bytes());
        }
    }
    Ok(())
}

fn said(count: usize, what: &str, out: &std::path::Path, bytes: u64) {
    terminal::message(&format!("{count} {what} in {}; the codec took {}", out.display(), ByteSize(bytes)));
}
