//! `ambitus say`.

use crate::args::{WeightsArg, positive};
use crate::terminal::{self, Terminal, json};
use ambitus_families::ALL;
use ambitus_families::error::RunError;
use ambitus_families::generate::{Flow, Settings};
use ambitus_families::sampling::Sampling;
use ambitus_families::speech::{Asked, Reference};
use ambitus_plan::budget::START_BYTES;
use ambitus_plan::memory;
use ambitus_recipe::recipe::{DeviceChoice, Precision};
use ambitus_recipe::size::ByteSize;
use ambitus_train::export::Source;
use ambitus_train::inference::InferenceOptions;
use ambitus_train::say::{self, Out, Taken, Text};
use ambitus_train::trained::Trained;
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct SayArgs {
    /// Model folder, run, checkpoint of a run (runs/NAME/checkpoints/step-N), or export
    pub model: PathBuf,
    /// What is said; long texts are cut at punctuation, and joined again
    #[arg(required_unless_present = "text_file", conflicts_with = "text_file")]
    pub text: Option<String>,
    /// File of texts, one a line (-: standard input)
    #[arg(long = "text", value_name = "FILE")]
    pub text_file: Option<PathBuf>,
    /// Where the sound goes: .wav or .flac, for several lines NAME-1.wav, NAME-2.wav …; -: WAV on standard output, while it is
    /// made
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Clip of the voice that speaks, 3 to 12 s, for models that clone voices [default: of a run, that of its samples]
    #[arg(long = "ref", value_name = "AUDIO", requires = "ref_text")]
    pub reference: Option<PathBuf>,
    /// The words that are spoken in the clip
    #[arg(long, value_name = "TEXT", requires = "reference")]
    pub ref_text: Option<String>,
    /// Name of the voice that speaks, for models that have named ones
    #[arg(long, value_name = "NAME")]
    pub voice: Option<String>,
    /// Folder of the codec, for models that write codes [default: of a run, that of its recipe]
    #[arg(long, value_name = "DIR", conflicts_with = "vocoder")]
    pub codec: Option<PathBuf>,
    /// Folder of the vocoder, for models that write mel frames [default: Griffin-Lim, which buzzes]
    #[arg(long, value_name = "DIR")]
    pub vocoder: Option<PathBuf>,
    /// Adapter that is added to a model folder's weights
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Which weights of a run [default: the better ones by its validations]
    #[arg(long)]
    pub weights: Option<WeightsArg>,
    /// 1.2: faster than the clip, 0.8: slower
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Seed of noise and draws: the same speech again
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Steps from noise to mel frames
    #[arg(long, default_value_t = 32, value_parser = positive())]
    pub steps: usize,
    /// Strength of classifier-free guidance; 0: none, in half the time
    #[arg(long, default_value_t = 2.0)]
    pub cfg: f32,
    /// Sway sampling: below 0 steps are denser near noise; 0: even steps
    #[arg(long, default_value_t = -1.0, allow_negative_numbers = true)]
    pub sway: f32,
    /// Always take the likeliest token
    #[arg(long)]
    pub greedy: bool,
    /// Divide logits by this: above 1 more varied, below 1 more certain
    #[arg(long, default_value_t = 0.6, conflicts_with = "greedy")]
    pub temperature: f32,
    /// Choose among the likeliest K tokens [default: all]
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, conflicts_with = "greedy")]
    pub top_k: usize,
    /// Choose among the likeliest tokens that have this probability together
    #[arg(long, value_name = "P", default_value_t = 0.9, conflicts_with = "greedy")]
    pub top_p: f32,
    /// Make tokens of the prompt and of what is written less likely, where above 1
    #[arg(long, value_name = "P", default_value_t = 1.1)]
    pub repetition_penalty: f32,
    /// New tokens of a piece at most [default: by its text]
    #[arg(long, value_name = "N", default_value_t = 8192, hide_default_value = true)]
    pub max_new: usize,
    /// Pieces at a time: more are faster together and take more memory [default: 1 to standard output, else 8]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub sequences: Option<usize>,
    /// What to compute in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure (weights, too, in half the bytes)
    #[arg(long, default_value = "fp32")]
    pub precision: Precision,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory budget; a text that is too long for it is said in shorter pieces
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Print what was said, planned and taken as JSON (not with -o -)
    #[arg(long)]
    pub json: bool,
}

pub fn run(a: &SayArgs) -> Result<(), RunError> {
    let is_stream = a.out == Path::new("-");
    let out = match is_stream {
        true => Out::Stream(|| Box::new(std::io::stdout())),
        false => Out::File(a.out.clone()),
    };
    if a.json && is_stream {
        return Err(RunError::Usage(
            "--json: standard output takes the sound (-o -); name a file".to_owned(),
        ));
    }
    if !(a.speed.is_finite() && (0.1..=10.0).contains(&a.speed)) {
        return Err(RunError::Usage(format!("--speed: {} is not from 0.1 to 10", a.speed)));
    }
    let text = match (&a.text, &a.text_file) {
        (Some(text), _) => Text::Given(text),
        (None, Some(path)) if path != Path::new("-") => Text::File(path),
        _ => Text::Standard,
    };
    let lines = text.lines()?;
    let sampling = Sampling {
        greedy: a.greedy,
        repetition_penalty: a.repetition_penalty,
        temperature: a.temperature,
        top_k: a.top_k,
        top_p: a.top_p,
        seed: a.seed,
    };
    sampling.check().map_err(RunError::Usage)?;
    let sequences = a.sequences.unwrap_or(if is_stream { 1 } else { 8 });
    let flow = Flow { steps: a.steps, cfg: a.cfg, sway: a.sway };
    let settings = Settings { sampling, max_new: a.max_new, logits: false, sequences, flow };
    let threads = a.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let source = a.weights.map(|w| match w {
        WeightsArg::Ema => Source::Ema,
        WeightsArg::Raw => Source::Raw,
    });
    let mut terminal = Terminal::new();
    let trained = Trained::open(ALL, &a.model, (a.adapter.as_deref(), source), &mut terminal)?;
    let given = a.reference.clone().zip(a.ref_text.clone()).map(|(path, text)| Reference::Sound(path, text));
    let reference = given.or_else(|| trained.reference().map(Reference::Clip));
    let (precision, device, memory) = (a.precision, a.device, a.memory.map(|m| m.0));
    let asked = Asked {
        lines: &lines,
        reference: reference.as_ref(),
        voice: a.voice.as_deref(),
        decoder: a.codec.as_deref().or(a.vocoder.as_deref()),
        settings: &settings,
        speed: a.speed,
        most_seconds: f64::INFINITY,
        threads,
        room: memory.map_or(u64::MAX, |bytes| bytes.saturating_sub(START_BYTES)),
    };
    let options = InferenceOptions { precision, device, threads, memory };
    let taken = say::say(&trained, &asked, &options, &out, &mut terminal)?;
    drop(terminal);
    let Taken { planned_bytes, seconds, speech_seconds, .. } = taken;
    let measured = memory::process().ok().map(|p| p.peak_rss_bytes);
    if a.json {
        let mut said = serde_json::to_value(&taken).map_err(|e| RunError::Io(e.to_string()))?;
        said["measured_bytes"] = measured.into();
        said["model"] = trained.said.clone().into();
        json(&said);
        return Ok(());
    }
    terminal::message(&format!(
        "{}: {speech_seconds:.1} s of speech in {seconds:.1} s ({:.2} a second); planned {}, measured {}",
        trained.said,
        speech_seconds / seconds.max(1e-9),
        ByteSize(planned_bytes),
        measured.map_or("?".to_owned(), |b| ByteSize(b).to_string())
    ));
    Ok(())
}
