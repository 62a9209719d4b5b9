//! Arguments. Help texts are the manual.

mod clips;
mod codec;
mod export;
mod generate;
mod generation;
mod inference;
mod prepare;
mod say;
mod transcribe;

pub use clips::ClipsArgs;
pub use codec::CodecCommand;
pub use export::ExportArgs;
pub use generate::GenerateArgs;
pub use generation::GenerationArgs;
pub use prepare::PrepareArgs;
pub use say::SayArgs;
pub use transcribe::TranscribeArgs;

use crate::own::{OwnArgs, folders, names};
use ambitus_plan::data::Assume;
use ambitus_recipe::recipe::{
    Batch, Checkpoint, DeviceChoice, Level, MicroBatch, Offload, OptimizerChoice, Placement, Precision,
    Schedule,
};
use ambitus_recipe::size::ByteSize;
use ambitus_train::run::tune::Axis;
use ambitus_train::{Strategy, Units};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Fine-tune open speech and music models inside a memory budget: planned before the first step, never exceeded.
#[derive(Parser)]
#[command(
    name = "ambitus",
    version,
    after_help = "Exit codes: 0 done · 1 a bug · 2 usage or recipe · 3 does not fit · 4 model \
files · 5 data · 6 reading or writing · 7 training failed · 8 no GPU, driver or library (CUDA's, Open MPI's), or it failed · 9 another rank died or hangs · 10 stopped on request, can be resumed"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Cut recordings of any length to clips of one or two sentences, in the pauses between them
    #[command(
        after_help = "Examples:\n  ambitus clips talk.mp3 -o my-voice\n  ambitus clips recordings/ more.m4a -o my-voice --model DIR\n  ambitus clips \
talk.wav --transcript talk.srt -o my-voice\n\nDIR/clips.tsv says what was cut where and why. Where there are transcripts, DIR is a data set \
for `ambitus train --data DIR`."
    )]
    Clips(ClipsArgs),
    /// Check a folder of audio and its transcripts, and cache what training needs; with --check, say what is wrong with it
    #[command(
        after_help = "Examples:\n  ambitus prepare --data my-voice --check\n  ambitus prepare --model DIR --data my-voice"
    )]
    Prepare(PrepareArgs),
    /// Show what a run will need, phase by phase, and whether it fits; reads no weights
    #[command(
        args_override_self = true,
        after_help = "Examples:\n  ambitus plan recipes/quickstart.yaml\n  ambitus plan --model DIR --assume 32x5s,1x17s --memory 8GiB\n  ambitus plan recipes/quickstart.yaml --card rtx3090\n  ambitus plan recipes/quickstart.yaml --cards\n  ambitus plan recipes/quickstart.yaml --cards 2xrtx3090"
    )]
    Plan(PlanArgs),
    #[command(
        about = format!("Read other trainers' configurations (accelerate, TrainingArguments, those of {}) into a recipe, key by key", names()),
        after_help = "Examples:\n  ambitus import accelerate.yaml args.json -o recipe.yaml --model DIR --data DIR\n  ambitus import \
accelerate.yaml -- --fsdp 'full_shard auto_wrap' --bf16 --per_device_train_batch_size 4\n\nEach key is used (and as what), default (what \
happens anyway), without effect (and why), a question, or unknown (with the nearest name). No code in a file is executed."
    )]
    Import(crate::import::ImportArgs),
    /// Fine-tune
    #[command(
        args_override_self = true,
        arg(clap::Arg::new("card").long("card").hide(true).value_parser(only_planned)),
        arg(clap::Arg::new("assume").long("assume").hide(true).value_parser(only_assumed)),
        after_help = "Examples:\n  ambitus train recipes/quickstart.yaml\n  ambitus train --model DIR --data my-voice --memory 20GiB\n\nA recipe may \
declare stages, each with its own freeze, lora, updates or epochs, learning_rate, warmup, batch, checkpoint, precision and \
optimizer:\n  stages: [{name: head, freeze: ['*.transformer_blocks'], updates: 200}, {name: all, updates: 800}]\nEach starts from \
the model that the previous one made. All are planned before the first begins. The run's memory is that of the largest stage, its \
time the sum of all. Between two stages the model is exported and loaded, and the optimizer starts anew."
    )]
    Train(RunArgs),
    /// Resume a run, or a tuning, that was stopped or killed
    Resume(ResumeArgs),
    /// Find the learning rate of a run by short trials, or the best values of other keys
    #[command(
        args_override_self = true,
        arg(clap::Arg::new("card").long("card").hide(true).value_parser(only_planned)),
        arg(clap::Arg::new("assume").long("assume").hide(true).value_parser(only_assumed)),
        after_help = "Examples:\n  ambitus tune recipes/quickstart.yaml\n  ambitus tune my-voice.yaml --grid lora.rank=8,16,32 --grid \
warmup=0,50\n\nEach trial begins with the model's own weights and the same draws, and is measured on the held-out clips. All together \
take a fifth of the run's updates (150, where that is more), within the run's own plan. The recipe with what was found is \
RUN_DIR/tuned.yaml. Stopped or killed, it goes on with `ambitus resume RUN_DIR`."
    )]
    Tune(TuneArgs),
    /// Compute loss and gradients of one update on given clips and draws, for comparison with the reference
    Gradients(GradientsArgs),
    /// Generate from given prompts, reference clips and noise, for comparison with the reference
    Generate(GenerateArgs),
    /// Speak a text with a model, a run, a checkpoint, an export, or a model and an adapter
    #[command(
        after_help = "Examples:\n  ambitus say runs/NAME \"Good morning.\" -o hello.wav\n  ambitus say MODEL \"Good morning.\" --ref clip.wav \
--ref-text \"what is said in it\" --vocoder DIR -o hello.flac\n  ambitus say runs/NAME --voice tara --codec DIR --text lines.txt -o line.wav\n  echo \"Good \
morning.\" | ambitus say runs/NAME --text - -o - | aplay"
    )]
    Say(SayArgs),
    /// Write what is said in audio files, with the times of words, or say how well given texts fit them
    Transcribe(TranscribeArgs),
    /// Show the ids and pieces that a model reads of each line of a text
    Tokens(crate::tokens::TokensArgs),
    /// Write a run's model as the original project loads it
    Export(ExportArgs),
    /// List all runs in a folder in one table: what differs, memory, speed, validation loss
    Runs(RunsArgs),
    /// Follow a run, or all runs in a folder, while it trains in another process: where it is, and what happens to it
    #[command(
        after_help = "Examples:\n  ambitus watch runs/NAME\n  ambitus watch runs\n  ambitus watch runs/NAME --once\n\nOn a terminal one line \
stands (of a folder, one for each run), with what happens above it: validations, slow steps with their reasons, samples, updates that were \
skipped. Elsewhere lines come one by one, progress every 10 s. It ends when the run has ended, or at Ctrl-C, with exit code 0; the run \
is not touched."
    )]
    Watch(crate::watch::WatchArgs),
    /// Convert audio to the codes of a frozen codec (SNAC at 24 kHz, DAC) and back, or mel frames to audio (Vocos), on the CPU
    Codec {
        #[command(subcommand)]
        command: CodecCommand,
    },
    /// Show what this machine has: processor, memory, limits, who else uses them
    Doctor(DoctorArgs),
}

/// Refuses `train --card NAME`, which people type after `plan --card NAME`.
fn only_planned(_: &str) -> Result<String, String> {
    Err("a card of cards.toml can only be planned for (`ambitus plan`); `train` uses this machine's GPU: --device cuda".to_owned())
}

/// Refuses `train --assume CLIPS`, which people type after `plan --assume CLIPS`.
fn only_assumed(_: &str) -> Result<String, String> {
    Err("assumed clips can only be planned for (`ambitus plan`); `train` needs a folder of audio: --data DIR"
        .to_owned())
}

fn level(text: &str) -> Result<Level, String> {
    match text {
        "same" => Ok(Level::Same),
        "reordered" => Ok(Level::Reordered),
        "changed" => Ok(Level::Changed),
        _ => Err("is not same, reordered or changed".to_owned()),
    }
}

#[derive(Args, Clone)]
pub struct PlanArgs {
    #[command(flatten)]
    pub run: TrainArgs,
    /// Clips that stand in for data, by count and length as the model counts it: 32x5s,1x17s in seconds, 32x400f in frames,
    /// 32x800t in tokens (each second is assumed to have 4 tokens of text). Updates, micro-batches and held-out clips are those of
    /// real ones
    #[arg(long, value_name = "CLIPS", conflicts_with = "data")]
    pub assume: Option<Assume>,
    /// Also show the nearest of the combinations that the search tried: bytes, seconds, and why they are or are not the plan
    #[arg(long)]
    pub explain: bool,
    /// Also plan every combination of what the search may choose, each with all of its options: to hold the choice against them.
    /// Minutes for a large model
    #[arg(long)]
    pub lattice: bool,
    /// Write every program into this folder as text: as it is run (micro.txt), and as each compiler pass left it
    /// (micro/07-checkpoint.txt)
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Also show the time of each compiler pass
    #[arg(long)]
    pub timings: bool,
    /// Plan for this GPU of cards.toml, which this machine need not have. The budget is its usable memory [or --memory], in place
    /// of the recipe's device and memory; seconds are predicted from the table's rates. `cpu`: this machine's processor, its rates
    /// measured now
    #[arg(long, value_name = "NAME", group = "table", conflicts_with = "device")]
    pub card: Option<String>,
    /// Plan for every GPU of cards.toml: which can train this, with what changes, and how fast. Exit code 3 when none can. With
    /// several GPUs of one kind (`--cards 4xa800`): plan for one of them, as a rank of the recipe's `sharding` (default: full),
    /// with what each strategy would take. The run is then also planned as data parallel (a whole copy on each GPU), model
    /// parallel (each block on one GPU: saves memory, costs waiting) and as a pipeline (waits less, keeps more)
    #[arg(long, value_name = "NxNAME", num_args = 0..=1, default_missing_value = "", group = "table", conflicts_with_all = ["device", "memory"])]
    pub cards: Option<String>,
    /// Plan for the GPUs of several hosts, described in this file (card, hosts, cards_per_host, network_gb_per_s)
    #[arg(long, value_name = "FILE", group = "table", conflicts_with_all = ["device", "memory"])]
    pub cluster: Option<PathBuf>,
    /// Also show this run on 1 to 1024 such GPUs, sharded and replicated, by predicted time; --scaling=a800,h100 sets several
    /// kinds of GPUs side by side
    #[arg(long, value_name = "CARDS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub scaling: Option<String>,
    /// Lay this accelerate file (or whatever `ambitus import` reads) over the recipe: its ranks, sharding, precision, offload
    /// and recomputing. Options override it. No other key of the recipe changes
    #[arg(long, value_name = "FILE")]
    pub accelerate: Option<PathBuf>,
    /// Cards to add and replace [default: cards.toml of the working directory, if there is one]
    #[arg(long, value_name = "FILE", requires = "table")]
    pub cards_file: Option<PathBuf>,
}

#[derive(Args, Clone, Default)]
pub struct TrainArgs {
    /// Recipe (YAML); or use --model and --data
    pub recipe: Option<PathBuf>,
    #[arg(long, help = folders())]
    pub model: Option<PathBuf>,
    /// Folder of audio with transcripts. `plan` also takes --assume instead; for some families it needs neither and then assumes
    /// clips as long as the micro-batch or --max-seconds
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Folder for the run's results [default: a new one under runs/]
    #[arg(long)]
    pub run_dir: Option<PathBuf>,
    /// Where to compute: cpu, cuda or cuda:N [default: cpu]
    #[arg(long)]
    pub device: Option<DeviceChoice>,
    /// Memory budget of the process; with --device cuda, of the GPU (e.g. 20GiB). What --offload moves to the host's memory counts
    /// towards --host-memory instead; with --device cpu the process holds both [default: 90 % of what is free]
    #[arg(long)]
    pub memory: Option<ByteSize>,
    /// What the model computes in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure. The 16-bit ones halve all activations and
    /// are faster on GPUs; they cost digits (gradients within about 1 % of fp32's; weights, their gradients and moments stay fp32).
    /// fp16-mixed is for GPUs without bfloat16: it scales the loss, and skips updates that overflow. bf16-pure keeps weights
    /// in bfloat16 too: 2 bytes a parameter instead of 4, with updates rounded at random. tf32-mixed is fp32 with faster matrix
    /// products, of operands with fewer digits (GPUs from Ampere on) [default: bf16-mixed on GPUs with tensor cores, fp16-mixed
    /// on Turing, else fp32; with --numerics same fp32]
    #[arg(long)]
    pub precision: Option<Precision>,
    /// Ranks that share the run: each needs less memory by what --sharding shares, and spends time on exchanging. With --device cpu
    /// they are threads of this process, which divide --threads; --memory is that of all together. Under mpirun or srun the
    /// processes are the ranks, each with its own --memory (docs/launch.md) [default: 1; with `plan --cards NxNAME`, N]
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// How ranks share: full (parameters and gradients, gathered again in backward: usually the least memory), grad_op
    /// (gathered tensors stay until backward is done: half the gathering, a copy of the model), none (each has all of it: data parallel),
    /// hybrid:S or hybrid_grad_op:S (full or grad_op in groups of S ranks). All give the same bits [default: full]
    #[arg(long, value_name = "STRATEGY")]
    pub sharding: Option<Strategy>,
    /// Give each rank some blocks of the model in place of a share of everything (--sharding): model (a micro-batch goes through the
    /// ranks one after another: their memory adds up, and they wait for each other), pipeline (several micro-batches of an update
    /// are in the ranks at a time: waits less, keeps more activations) or none. Same bits as one rank with the same --micro-batch;
    /// if that is left open, the planner may choose another one for this number of ranks [default: none]
    #[arg(long, value_name = "HOW")]
    pub placement: Option<Placement>,
    /// What is kept in the host's memory and copied to the device for use, as a list: all, none, parameters, gradients,
    /// optimizer, optimizer=0.5 (half of it), ema, activations, activations=blocks, disk=FOLDER (cpu: in a file). Saves nearly all
    /// of their bytes on the device, same numbers; costs host memory, and time where copying takes longer than computing
    #[arg(long, value_name = "WHAT", overrides_with = "low_vram")]
    pub offload: Option<Offload>,
    /// Keep everything in the host's memory (--offload all): takes the least device memory of these options, and is the slowest;
    /// same numbers. With --device cpu the host's memory is this process's too: --memory then bounds the rest of it
    #[arg(long, overrides_with = "offload")]
    pub low_vram: bool,
    /// Budget of what is offloaded; with --device cuda, of the process too [default: what is free besides --memory]
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<ByteSize>,
    /// What backward recomputes instead of keeping it: none, all, a number of blocks, values:N (the N cheapest values of
    /// every block), or modules by name ('*.to_q,*.ff.ff.2'). Same numbers; `all` saves most of the activations and costs
    /// about a third more time [default: what the budget needs, cheapest first]
    #[arg(long, value_name = "WHAT")]
    pub checkpoint: Option<Checkpoint>,
    /// How far the planner may go for options that are not given: same (bit for bit), reordered (other micro-batches: sums in
    /// another order) or changed (16-bit precision, small optimizer states) [default: reordered]
    #[arg(long, value_parser = level)]
    pub numerics: Option<Level>,
    /// Apply each gradient as soon as backward has computed it: saves the bytes of all gradients (a quarter of weights, gradients and
    /// moments), costs no time; same numbers (on a GPU to rounding). Needs --clip-per-tensor and updates of one micro-batch
    #[arg(long)]
    pub update_in_backward: bool,
    /// Clip each tensor's gradient by its own norm instead of all by the global one: changes numbers, costs no memory or time
    #[arg(long)]
    pub clip_per_tensor: bool,
    /// What applies gradients: adamw (moments in fp32, 8 bytes a parameter), adamw-bf16 (4) or adamw-8bit (2); lion (4) or
    /// lion-8bit (1), which has one moment and takes a fifth of the learning rate unless you give one. Narrow moments cost
    /// precision (other numbers, much the same loss), and on the CPU some time per update
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<OptimizerChoice>,
    /// What is computed at once: frames or tokens as the model counts them, seconds of audio as 20s, or max (the most that fits;
    /// exact, because it is planned). The update stays the same; less saves memory and costs a little time [default: what is
    /// fastest within the budget]
    #[arg(long, value_name = "SIZE")]
    pub micro_batch: Option<MicroBatch>,
    /// Threads [default: all cores]; results do not depend on it
    #[arg(long)]
    pub threads: Option<u32>,
    /// Updates
    #[arg(long)]
    pub updates: Option<u64>,
    /// Audio of one update: clips as 8, seconds as 60s, frames as 3200f or tokens as 3200t. More gives a steadier gradient and
    /// takes longer, but no more memory, as it is computed in micro-batches [default: the family's]
    #[arg(long, value_name = "SIZE")]
    pub batch: Option<Batch>,
    /// Updates of linear warm-up [default: the family's, else min(100, 5 % of the updates)]
    #[arg(long, value_name = "UPDATES")]
    pub warmup: Option<u64>,
    /// The rate after warm-up: linear (to zero), cosine, cosine-restarts, warm-restarts, constant, exponential,
    /// inverse-sqrt or milestones, with its numbers as cosine,floor=0.1 (`schedule:` in a recipe has the list) [default: linear]
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<Schedule>,
    /// Updates between checkpoints; 0: only after the last [default: 100]
    #[arg(long, value_name = "UPDATES")]
    pub save_every: Option<u64>,
    /// Keep a moving average of the weights: 4 bytes for each trained one [default: the family's]
    #[arg(long, overrides_with = "no_ema")]
    pub ema: bool,
    /// Keep no moving average: saves its bytes; the weights themselves are exported [default: the family's]
    #[arg(long, overrides_with = "ema")]
    pub no_ema: bool,
    /// Speak no samples while it trains: saves their bytes and time, and changes no number of the run
    #[arg(long)]
    pub no_samples: bool,
    /// Longest clip in seconds
    #[arg(long)]
    pub max_seconds: Option<f64>,
    /// Bring every clip to this loudness while it is prepared, in LUFS (-23 is usual), as far as its peak allows. Files stay as they are
    #[arg(long, value_name = "LUFS", allow_negative_numbers = true)]
    pub loudness: Option<f64>,
    /// Leave out silence before and after speech, but for so many seconds (--trim=0.2) [default without a number: 0.1]. Files stay as
    /// they are; not for music
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    pub trim: Option<Option<f64>>,
    /// Peak learning rate [default: the family's; for adapters (--lora) 1e-4]
    #[arg(long)]
    pub learning_rate: Option<f64>,
    /// Seed of all random draws in training; validation does not depend on it
    #[arg(long)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub own: OwnArgs,
    /// Freeze what matches: a parameter or module, `*` is anything, e.g. '*.text_embed'; repeatable.
    /// Saves gradient, optimizer state and average (16 of a parameter's 20 bytes) and the activations kept only for them;
    /// costs what the frozen part could have learned
    #[arg(long, value_name = "PATTERN")]
    pub freeze: Vec<String>,
    /// Train additions of this rank to attention and feed-forward, and freeze the model (LoRA; `lora:` in a recipe has more).
    /// Saves gradient, optimizer state and average of nearly everything; costs a few percent more arithmetic forward, and
    /// what low rank cannot express. 8 to 32 is usual; the learning rate is 1e-4 if none is given
    #[arg(long, value_name = "RANK", conflicts_with = "freeze")]
    pub lora: Option<u32>,
    /// Machine-readable result on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub run: TrainArgs,
    #[command(flatten)]
    pub world: WorldArgs,
}

#[derive(Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub run: TrainArgs,
    /// A key of the recipe and the values to try, as lora.rank=8,16 or learning_rate=1e-4,3e-4 (commas within brackets are part of a
    /// value). Given several times: every combination. The learning rate is then looked for only if it is one of them
    #[arg(long, value_name = "KEY=A,B,C", action = clap::ArgAction::Append)]
    pub grid: Vec<Axis>,
}

#[derive(Args)]
pub struct ResumeArgs {
    /// The run's folder
    pub run: PathBuf,
    /// Resume with N ranks, any number: the same tensors, cut otherwise. Sums are taken in another order; each rank's memory
    /// changes with what it then holds
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// Resume with another strategy (as for `train`), also if the run was placed. Changes memory and traffic; with the same number
    /// of ranks the bits stay the same
    #[arg(long, value_name = "STRATEGY", conflicts_with = "placement")]
    pub sharding: Option<Strategy>,
    /// Resume with the model placed on the ranks (as for `train`), also if the run was sharded: memory adds up, ranks wait for
    /// each other. A run of one rank keeps its bits, as it keeps its micro-batch
    #[arg(long, value_name = "HOW")]
    pub placement: Option<Placement>,
    #[command(flatten)]
    pub world: WorldArgs,
    /// summary.json on stdout
    #[arg(long)]
    pub json: bool,
}

/// Options of commands that run on several processes.
#[derive(Args, Clone, Default)]
pub struct WorldArgs {
    /// Seconds that a rank of several processes (mpirun, srun) waits for another in one exchange before the run is ended. Must be
    /// longer than any rank computes or writes alone. Fewer seconds notice a hanging rank sooner; costs nothing [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watchdog: Option<u64>,
}

#[derive(Args)]
pub struct GradientsArgs {
    #[arg(long, help = folders())]
    pub model: PathBuf,
    /// Clips and draws (safetensors: clips.i.mel, .x0, .time, .text, .span, .drop_audio, .drop_text; of tokens clips.i.input_ids,
    /// .labels, not shifted, -100 not scored)
    #[arg(long)]
    pub batch: PathBuf,
    /// Where loss and gradients go (safetensors)
    #[arg(long)]
    pub out: PathBuf,
    /// What to compute in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure. 16 bits: half the activations, fewer digits.
    /// Gradients are written in fp32
    #[arg(long, default_value = "fp32")]
    pub precision: Precision,
    /// What backward recomputes: none, all, a number of blocks, values:N, or modules by name
    #[arg(long, default_value = "none")]
    pub checkpoint: Checkpoint,
    /// Frames or tokens of a micro-batch: fewer take less memory [default: all clips in one]
    #[arg(long)]
    pub micro_batch: Option<usize>,
    /// Virtual devices in this process that share the model and take turns at the micro-batches, each with its own arena and
    /// threads: computes on the CPU what several GPUs would. Costs memory and time, saves nothing here. Under mpirun or srun the
    /// processes are the ranks (docs/launch.md)
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// How ranks share: full (parameters and gradients, gathered again in backward: usually the least memory), grad_op
    /// (gathered tensors stay until backward is done: half the gathering, a copy of the model), none (every rank has all of it),
    /// hybrid:S or hybrid_grad_op:S (full or grad_op in groups of S ranks). All give the same bits [default: full]
    #[arg(long, value_name = "STRATEGY")]
    pub sharding: Option<Strategy>,
    /// Give each rank some blocks of the model in place of a share of everything (--sharding): model (a micro-batch goes through the
    /// ranks one after another: their memory adds up, and they wait for each other), pipeline (several micro-batches of an update
    /// are in the ranks at a time: waits less, keeps more activations) or none. Same bits as one rank
    #[arg(long, value_name = "HOW", conflicts_with_all = ["sharding", "units"])]
    pub placement: Option<Placement>,
    /// What ranks gather together: block, or modules of N parameters. Larger units mean fewer collectives and more memory
    /// [default: block]
    #[arg(long, value_name = "UNITS")]
    pub units: Option<Units>,
    #[command(flatten)]
    pub world: WorldArgs,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory budget, e.g. 20GiB [default: 90 % of what is free]
    #[arg(long)]
    pub memory: Option<ByteSize>,
    #[command(flatten)]
    pub own: OwnArgs,
    /// The loss as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum WeightsArg {
    Ema,
    Raw,
}

#[derive(Args)]
pub struct RunsArgs {
    /// Folder of run folders
    #[arg(default_value = "runs")]
    pub dir: PathBuf,
    /// JSON on stdout
    #[arg(long, conflicts_with = "page")]
    pub json: bool,
    /// Write a page of all runs, DIR/runs.html, and the report.html of each run that went on since its own was written, such as one
    /// that was killed
    #[arg(long)]
    pub page: bool,
}

#[derive(Args)]
pub struct DoctorArgs {
    /// JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// Returns the threads that are asked for, or all.
pub fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Parses a number of at least one.
fn positive() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u32).range(1..).map(|n| n as usize)
}
