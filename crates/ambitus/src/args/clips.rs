//! Arguments of `ambitus clips`.

use crate::own::folders;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct ClipsArgs {
    /// Recordings: wav, flac, mp3, ogg/vorbis, m4a, aac; mp4 and mkv by their first audio track. Of a folder, all in it
    #[arg(value_name = "IN", required = true)]
    pub recordings: Vec<PathBuf>,
    /// Folder for the clips: new, or left by the same command, which then does the rest
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Transcript of the one recording: SRT, VTT, or JSON of whisper.cpp, Whisper, faster-whisper or WhisperX [default: NAME.json,
    /// NAME.srt or NAME.vtt beside each recording, where there is one]
    #[arg(long, value_name = "FILE")]
    pub transcript: Option<PathBuf>,
    #[arg(long, help = format!("Model that will be trained: clips are no longer than it takes them. {}", folders()))]
    pub model: Option<PathBuf>,
    /// Join clips shorter than this to a neighbour where that fits [default: 2]
    #[arg(long, value_name = "S")]
    pub min_seconds: Option<f64>,
    /// Longest clip; longer only where no pause was heard, which is said [default: 12, less where the model takes less]
    #[arg(long, value_name = "S")]
    pub max_seconds: Option<f64>,
    /// Recordings that are worked on at a time; the clips are the same [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// JSON on stdout: [{"file": ..., "source": ..., "start": ..., "end": ...}], seconds
    #[arg(long)]
    pub json: bool,
}
