//! Everything that needs a card, in one run, with a page of results. Meant to take under eight minutes; not yet run on a
//! card.

use crate::programs::{self, F5Shape, Measured};
use crate::report::{Report, quartiles};
use crate::{f5, ops, peers};
use ambitus_cuda::driver::{self, Card, CardInfo};
use ambitus_cuda::{CudaExecutor, CudaTarget, STATED_RESERVE, nvml, nvrtc, reserve};
use ambitus_exec::executor::Executor;
use ambitus_ir::DType;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::Capacity;
use ambitus_recipe::recipe::DeviceChoice;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rounds of steps on each side, alternating.
const ROUNDS: usize = 9;
/// The sanitizer is stopped after this.
const SANITIZER_SECONDS: u64 = 150;
/// Set for the process that runs under the sanitizer: parity of ops only.
const SANITIZED: &str = "AMBITUS_SANITIZED";

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of the card.
    pub card: usize,
    /// Folder of the page.
    pub out: PathBuf,
    /// Python with torch, for the peers.
    pub python: String,
    /// Tiny shapes.
    pub small: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { card: 0, out: PathBuf::from("benches/results"), python: "python3".to_owned(), small: false }
    }
}

/// Runs everything and writes `<date>-<card>.md`.
///
/// # Errors
/// No card; or what was wrong, after the page was written.
pub fn gpu(options: &Options) -> Result<(), String> {
    let info = driver::card(options.card)?;
    if std::env::var_os(SANITIZED).is_some() {
        let mut page = Report::new("ops");
        let card = Card::open(options.card).map_err(|e| e.to_string())?;
        drop(parity(card, &[DType::F32], &mut page));
        return verdict(&page);
    }
    let page = run(options, &info)?;
    let name = format!("{}-{}.md", today(), slug(&info.name));
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    let path = options.out.join(name);
    std::fs::write(&path, page.markdown()).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("{}", path.display());
    verdict(&page)
}

fn verdict(page: &Report) -> Result<(), String> {
    if page.faults().is_empty() { Ok(()) } else { Err(page.faults().join("\n")) }
}

/// Returns the whole run.
///
/// # Errors
/// When the card does not open.
pub fn run(options: &Options, info: &CardInfo) -> Result<Report, String> {
    let started = Instant::now();
    let mut page = Report::new(&format!("On a card: {}", info.name));
    machine(info, &mut page);
    let card = Card::open(options.card).map_err(|e| e.to_string())?;

    page.section("Parity of every op");
    let card = parity(card, &[DType::F32, DType::BF16, DType::F16], &mut page);
    drop(card);
    sanitize(options, &mut page);

    page.section("F5's gradients against the reference package's");
    page.line("Share of the tolerance (loss 1e-5, each gradient 1e-4; above 1 is too far), fp32:\n");
    match f5::check(DeviceChoice::Cuda(options.card)) {
        Ok(all) => {
            let mut rows = vec![vec!["fixture".to_owned(), "worst".to_owned(), "of".to_owned()]];
            rows.extend(
                all.iter().map(|p| vec![p.what.clone(), format!("{:.2e}", p.worst.0), p.worst.1.clone()]),
            );
            page.table(&rows);
            for p in all.into_iter().filter(|p| p.worst.0 > 1.0) {
                page.fault(format!("{}: {} is {:.1} times too far", p.what, p.worst.1, p.worst.0));
            }
        }
        Err(why) => page.fault(why),
    }

    let measured = match rates(options, info, &mut page) {
        Ok(measured) => measured,
        Err(why) => {
            page.fault(why);
            return Ok(page);
        }
    };
    for subject in [Subject::F5, Subject::Llama] {
        if let Err(why) = subject.measure(options, info, measured, &mut page) {
            page.fault(format!("{}: {why}", subject.name()));
        }
    }
    page.line(&format!("\nThe whole run took {:.0} s.", started.elapsed().as_secs_f64()));
    Ok(page)
}

fn machine(info: &CardInfo, page: &mut Report) {
    let nvml = nvml::Nvml::load().and_then(|n| n.driver_version());
    let (major, minor) = nvrtc::version().unwrap_or_default();
    page.line(&format!(
        "\n{} · {} · compute capability {}.{} · {:.1} GiB · driver {} (CUDA {}.{}) · NVRTC {major}.{minor} · ambitus {}",
        today(),
        info.name,
        info.capability.0,
        info.capability.1,
        info.total_bytes as f64 / (1u64 << 30) as f64,
        nvml.unwrap_or_else(|why| why),
        info.driver.0,
        info.driver.1,
        env!("CARGO_PKG_VERSION"),
    ));
}

/// Checks parity in each element type; returns the card if it can still be used.
fn parity(card: Card, types: &[DType], page: &mut Report) -> Option<Card> {
    let mut card = Some(card);
    let head = ["operands", "cases", "largest relative L2 error", "of"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut faults = Vec::new();
    for dtype in types {
        let Some(here) = card.take() else { break };
        let (back, outcome) = ops::check(here, *dtype, &ambitus_testkit::cases());
        card = back;
        let (worst, name) = outcome.worst;
        rows.push(vec![dtype.name().to_owned(), outcome.cases.to_string(), format!("{worst:.1e}"), name]);
        faults.extend(outcome.faults);
    }
    page.table(&rows);
    faults.into_iter().for_each(|f| page.fault(f));
    card
}

/// Runs this program's kernel checks under compute-sanitizer, if it is installed.
fn sanitize(options: &Options, page: &mut Report) {
    let Ok(me) = std::env::current_exe() else { return };
    let mut command = Command::new("compute-sanitizer");
    command.args(["--tool", "memcheck", "--error-exitcode", "9"]).arg(me);
    command.args(["gpu", "--card", &options.card.to_string()]).env(SANITIZED, "1").process_group(0);
    let Ok(mut child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return page.line("\ncompute-sanitizer is not installed here: not run.");
    };
    let end = Instant::now() + Duration::from_secs(SANITIZER_SECONDS);
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => {
                return page.line("\nThe fp32 cases under compute-sanitizer (memcheck): clean.");
            }
            Ok(Some(status)) => return page.fault(format!("compute-sanitizer: {status}")),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(200)),
            _ => {
                // Its whole group: the program under it would keep running.
                let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
                let _ = child.wait();
                return page.line("\ncompute-sanitizer took too long and was stopped: no verdict.");
            }
        }
    }
}

fn rates(options: &Options, info: &CardInfo, page: &mut Report) -> Result<Measured, String> {
    let target = CudaTarget::new(info.capability, info.rates);
    let planned = Arc::new(programs::plan_rates(&target, options.small));
    let measured = programs::rates(&mut open(options, planned.clone())?, &planned)?;
    page.section("Measured rates");
    page.line(&format!(
        "fp32 product by cuBLASLt: {:.1} TFLOP/s; reading and writing: {:.0} GB/s (the planner assumed {:.1} and {:.0})",
        measured.gemm / 1e12,
        measured.bytes / 1e9,
        info.rates.gemm / 1e12,
        info.rates.bytes / 1e9
    ));
    Ok(measured)
}

fn open(options: &Options, planned: Arc<PlannedSession>) -> Result<CudaExecutor, String> {
    let card = Card::open(options.card).map_err(|e| e.to_string())?;
    CudaExecutor::open(planned, card, None).map_err(|e| e.why.to_string())
}

/// A step that is timed.
#[derive(Clone, Copy, Debug)]
enum Subject {
    F5,
    Llama,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::F5 => "F5 Base",
            Subject::Llama => "Llama block",
        }
    }

    /// Plans, opens, and fills the first micro-batch.
    fn open(self, options: &Options, info: &CardInfo) -> Result<(CudaExecutor, Arc<PlannedSession>), String> {
        let target = CudaTarget::new(info.capability, info.rates);
        let planned = Arc::new(match self {
            Subject::F5 => {
                programs::plan_f5(&programs::f5_config(options.small), f5_shape(options), &target)?
            }
            Subject::Llama => programs::plan_llama(
                &programs::llama_config(options.small),
                llama_capacity(options),
                &target,
            )?,
        });
        let mut exec = open(options, planned.clone())?;
        programs::random_weights(&mut exec)?;
        match self {
            Subject::F5 => {
                programs::random_clips(&mut exec, &programs::f5_config(options.small), f5_shape(options))?;
            }
            Subject::Llama => {
                let config = programs::llama_config(options.small);
                programs::random_tokens(&mut exec, &config, llama_capacity(options))?;
            }
        }
        Ok((exec, planned))
    }

    /// Returns script and arguments of the peer.
    fn peer(self, options: &Options) -> (&'static str, Vec<String>) {
        let numbers = |pairs: &[(&str, usize)]| -> Vec<String> {
            pairs.iter().flat_map(|(name, n)| [format!("--{name}"), n.to_string()]).collect()
        };
        let shape = match self {
            Subject::F5 => {
                let c = programs::f5_config(options.small);
                let s = f5_shape(options);
                let sizes = [
                    ("dim", c.dim),
                    ("depth", c.depth),
                    ("heads", c.heads),
                    ("head-dim", c.dim_head),
                    ("ff-mult", c.ff_dim / c.dim),
                    ("text-dim", c.text_dim),
                    ("conv-layers", c.conv_layers),
                    ("batch", s.clips),
                    ("frames", s.frames / s.clips),
                    // As ours: no dropout, the moving average in every update.
                    ("dropout", 0),
                    ("ema-every", 1),
                ];
                ("f5_plain_torch.py", numbers(&sizes))
            }
            Subject::Llama => {
                let c = programs::llama_config(options.small);
                let sizes = [
                    ("dim", c.dim),
                    ("heads", c.heads),
                    ("kv-heads", c.kv_heads),
                    ("head-dim", c.head_dim),
                    ("ffn", c.ffn),
                    ("vocab", c.vocab),
                    ("layers", c.layers),
                    ("tokens", llama_capacity(options).rows),
                ];
                ("llama_plain_torch.py", numbers(&sizes))
            }
        };
        let mut args: Vec<String> =
            ["--device", "cuda", "--precision", "fp32", "--steps", "3"].map(str::to_owned).to_vec();
        args.extend(shape.1);
        (shape.0, args)
    }

    fn measure(
        self,
        options: &Options,
        info: &CardInfo,
        measured: Measured,
        page: &mut Report,
    ) -> Result<(), String> {
        page.section(&format!("{}, fp32", self.name()));
        let before = nvml::card_at(&info.pci).map(|c| c.total_bytes - c.free_bytes);
        let (mut exec, planned) = self.open(options, info)?;
        let loss = programs::step(&mut exec)?;
        if !loss.is_finite() {
            return Err(format!("the loss is {loss}"));
        }
        let after = nvml::card_at(&info.pci).map(|c| c.total_bytes - c.free_bytes);
        memory(info, &exec, before, after, page);

        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (script, args) = self.peer(options);
        let peer = peers::Peer::start(&options.python, script, &args, folder.path());
        times(&mut exec, peer, page)?;

        page.line("\nOps of the micro-batch against the measured roofline (each op's kernels alone, back to back):\n");
        let head = ["op", "instructions", "ms", "% of roofline"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for o in programs::shares(&mut exec, &planned, "micro", measured)? {
            let share = format!("{:.0}", 100.0 * o.floor / o.seconds);
            rows.push(vec![o.op.to_owned(), o.count.to_string(), format!("{:.3}", 1e3 * o.seconds), share]);
        }
        page.table(&rows);
        Ok(())
    }
}

fn f5_shape(options: &Options) -> F5Shape {
    if options.small { F5Shape { frames: 64, clips: 2 } } else { F5Shape { frames: 3200, clips: 4 } }
}

fn llama_capacity(options: &Options) -> Capacity {
    Capacity { rows: if options.small { 64 } else { 8192 }, clips: 1 }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Compares the plan with what the driver says.
fn memory(
    info: &CardInfo,
    exec: &CudaExecutor,
    before: Result<u64, String>,
    after: Result<u64, String>,
    page: &mut Report,
) {
    let arena = exec.planned().arena_bytes();
    let reserve = reserve::known(info).unwrap_or(STATED_RESERVE);
    page.line(&format!("Planned: arena {}, beside it at most {}.", mib(arena), mib(reserve)));
    match (before, after) {
        (Ok(before), Ok(after)) => {
            let held = after.saturating_sub(before);
            page.line(&format!(
                "The driver reports {} more in use with the session open and a step done: {} beside the arena.",
                mib(held),
                mib(held.saturating_sub(arena))
            ));
            if held > arena + reserve {
                page.fault(format!("the card holds {}, planned were {}", mib(held), mib(arena + reserve)));
            }
        }
        (Err(why), _) | (_, Err(why)) => page.line(&format!("The driver's count cannot be read: {why}")),
    }
}

/// Rounds of steps, alternating with the peer's where there is one.
fn times(
    exec: &mut CudaExecutor,
    peer: Result<peers::Peer, String>,
    page: &mut Report,
) -> Result<(), String> {
    let (mut own, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut peer, missing) = match peer {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(why)),
    };
    let mut last = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..3 {
            programs::step(exec)?;
        }
        let ms = 1e3 * start.elapsed().as_secs_f64() / 3.0;
        own.push(ms);
        if let Some(p) = &mut peer {
            let answer = p.round()?;
            let step = answer["wall_ms"].as_f64().ok_or("the peer gave no time")?;
            theirs.push(step);
            ratios.push(ms / step);
            last = Some(answer);
        }
    }
    let shown = |x: &[f64]| {
        let (median, low, high) = quartiles(x);
        format!("{median:.2} ({low:.2} to {high:.2})")
    };
    page.line(&format!("\nA whole update, ms, median and quartiles of {ROUNDS} rounds: {}", shown(&own)));
    match (last, missing) {
        (Some(answer), _) => {
            page.line(&format!(
                "PyTorch {} beside it: {}",
                answer["torch"].as_str().unwrap_or("?"),
                shown(&theirs)
            ));
            page.line(&format!("Ratio, round by round: {}", shown(&ratios)));
            page.line(&format!("PyTorch's own count: {answer}"));
        }
        (None, Some(why)) => page.line(&format!("PyTorch was not run: {why}")),
        (None, None) => {}
    }
    Ok(())
}

/// Returns the date as `2026-11-21`, by the proleptic Gregorian calendar (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let z = (seconds / 86_400) as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns a card's name in a file's name.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}
