//! Is it right: kernels, gradients, memory, a run that is killed.

use super::subject::Subject;
use super::{Item, Run, techniques, work};
use crate::{ops, parity, programs};
use ambitus_cuda::driver::Card;
use ambitus_cuda::{CudaExecutor, STATED_RESERVE, reserve};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, StateId, StateKind};
use ambitus_recipe::recipe::DeviceChoice;
use ambitus_testkit::Case;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub const ITEMS: &[Item] = &[
    ("Parity of every op", cases),
    ("Gradients against the reference package's", gradients),
    ("Beta 0 onto NaN", beta_zero),
    ("Memory against the plan", memory_of_a_step),
    ("A run, killed and resumed", killed_and_resumed),
    ("A run with each technique", techniques::techniques),
    ("compute-sanitizer", sanitizers),
];

/// Every case in every mixture of element types, twice, with equal bits.
fn cases(run: &mut Run<'_>) -> Result<(), String> {
    let head = ["operands", "cases", "largest relative L2 error", "of", "twice the same bits"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut faults = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let cases: Vec<Case> = ambitus_testkit::cases();
        let mut outcomes = Vec::new();
        for _ in 0..2 {
            let card = Card::open(run.options.card).map_err(|e| e.to_string())?;
            outcomes.push(ops::check(card, dtype, &cases).1);
        }
        let same = outcomes[0].bits == outcomes[1].bits;
        let (worst, name) = outcomes[0].worst.clone();
        let numbers = [outcomes[0].cases.to_string(), format!("{worst:.1e}"), name, same.to_string()];
        rows.push([dtype.name().to_owned()].into_iter().chain(numbers).collect());
        faults.extend(outcomes.into_iter().flat_map(|o| o.faults));
        if !same {
            faults.push(format!("{}: other bits the second time", dtype.name()));
        }
    }
    run.page.table(&rows);
    faults.into_iter().for_each(|f| run.page.fault(f));
    Ok(())
}

fn gradients(run: &mut Run<'_>) -> Result<(), String> {
    run.page.line(
        "Share of what is allowed (above 1 is too far): in fp32 1e-5 of the loss and 1e-4 of each gradient, in bf16-mixed 1.5 times \
         the error of the reference's own autocast, of all gradients together.\n",
    );
    let all = parity::check(DeviceChoice::Cuda(run.options.card))?;
    let mut rows = vec![["fixture", "worst", "of"].map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|p| vec![p.what.clone(), format!("{:.2e}", p.worst.0), p.worst.1.clone()]));
    run.page.table(&rows);
    for p in all.into_iter().filter(|p| p.worst.0 > 1.0) {
        run.page.fault(format!("{}: {} is {:.1} times too far", p.what, p.worst.1, p.worst.0));
    }
    Ok(())
}

/// The first micro-batch of an update adds to gradients with a factor of 0, whatever they hold: by BLAS' definition they are not read
/// then. Here they hold NaN.
fn beta_zero(run: &mut Run<'_>) -> Result<(), String> {
    for subject in Subject::ALL {
        let (mut exec, _) = subject.open(run.options, run.info)?;
        poison(&mut exec, StateKind::Gradient)?;
        let loss = programs::step(&mut exec)?;
        let norm = programs::grad_norm(&mut exec)?;
        run.page.line(&format!("{}: loss {loss}, norm of the gradients {norm}", subject.name()));
        if !(loss.is_finite() && norm.is_finite()) {
            run.page.fault(format!("{}: gradients that are not read reach the result", subject.name()));
        }
    }
    Ok(())
}

fn poison(exec: &mut CudaExecutor, kind: StateKind) -> Result<(), String> {
    let states = exec.planned().session.states.clone();
    for (i, state) in states.iter().enumerate().filter(|(_, s)| s.kind == kind) {
        let nan = vec![f32::NAN; state.ty.shape.elements()];
        exec.write_state(StateId(i as u32), &nan).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Compares the plan with what the driver says that this process holds.
fn memory_of_a_step(run: &mut Run<'_>) -> Result<(), String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    for subject in Subject::ALL {
        run.page.line(&format!("\n{}:", subject.name()));
        let (mut exec, _) = subject.open(run.options, run.info)?;
        let loss = programs::step(&mut exec)?;
        if !loss.is_finite() {
            run.page.fault(format!("the loss is {loss}"));
        }
        let arena = exec.planned().arena_bytes();
        let reserve = reserve::known(run.info).unwrap_or(STATED_RESERVE);
        run.page.line(&format!("Planned: arena {}, beside it at most {}.", mib(arena), mib(reserve)));
        let Some(held) = reserve::held(&run.info.pci) else {
            run.page.line("The driver does not tell what a process holds.");
            continue;
        };
        run.page.line(&format!(
            "Held after a step, by the driver's count: {}, of it {} beside the arena.",
            mib(held),
            mib(held.saturating_sub(arena))
        ));
        if held > arena + reserve {
            run.page.fault(format!("the card holds {}, planned were {}", mib(held), mib(arena + reserve)));
        }
    }
    Ok(())
}

/// Two runs of one recipe, one of them killed at its first checkpoint and resumed: their exports must be equal.
fn killed_and_resumed(run: &mut Run<'_>) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let recipe = dir.path().join("recipe.yaml");
    let folders = work::folders(dir.path())?;
    work::recipe(&folders, &recipe, DeviceChoice::Cuda(run.options.card), "updates: 30\nsave_every: 5\n")?;
    let root = |name: &str| dir.path().join(name);
    let whole = work::child(run.options, &["train".as_ref(), recipe.as_os_str(), root("whole").as_os_str()])?;
    let said = whole.wait_with_output().map_err(|e| e.to_string())?;
    if !said.status.success() {
        return Err(String::from_utf8_lossy(&said.stderr).into_owned());
    }
    let mut killed =
        work::child(run.options, &["train".as_ref(), recipe.as_os_str(), root("killed").as_os_str()])?;
    let saved = root("killed").join("checkpoints");
    let mut died = false;
    while killed.try_wait().map_err(|e| e.to_string())?.is_none() {
        if !died && std::fs::read_dir(&saved).is_ok_and(|mut d| d.any(|e| is_checkpoint(e.ok()))) {
            killed.kill().map_err(|e| e.to_string())?;
            died = true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let resumed = work::child(run.options, &["resume".as_ref(), root("killed").as_os_str()])?;
    let said = resumed.wait_with_output().map_err(|e| e.to_string())?;
    if !said.status.success() {
        return Err(String::from_utf8_lossy(&said.stderr).into_owned());
    }
    let export = |name: &str| {
        let path = root(name).join("export/model.safetensors");
        std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    if export("whole")? != export("killed")? {
        return Err("a run that was killed and resumed exports other bits".to_owned());
    }
    run.page.line(if died {
        "Killed at its first checkpoint and resumed: the export has the same bits."
    } else {
        "The run ended before it could be killed; resumed, it exports the same bits."
    });
    Ok(())
}

fn is_checkpoint(entry: Option<std::fs::DirEntry>) -> bool {
    entry.is_some_and(|e| e.file_name().to_string_lossy().starts_with("step-") && e.path().is_dir())
}

/// A tool, the op whose cases it watches (all without), and whether it found nothing: false where it was stopped.
type Watched = (&'static str, Option<&'static str>, Result<bool, String>);

/// Lines of what a tool found that are quoted.
const QUOTED: usize = 40;

/// Every tool on the cases in every type until the stage's end, side by side; racecheck, which takes longest, op by op.
fn sanitizers(run: &mut Run<'_>) -> Result<(), String> {
    if Command::new("compute-sanitizer").arg("--version").output().is_err() {
        run.page.line("compute-sanitizer is not installed here: not run");
        return Ok(());
    }
    let mut ops: Vec<&'static str> = ambitus_testkit::cases().iter().map(|case| case.op.name()).collect();
    ops.sort_unstable();
    ops.dedup();
    let whole = ["memcheck", "initcheck", "synccheck"].map(|tool| (tool, None));
    let jobs: Vec<_> = whole.into_iter().chain(ops.into_iter().map(|op| ("racecheck", Some(op)))).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::<Watched>::new()));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                while let Some((tool, op)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = watched(run, tool, *op);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((tool, *op, verdict));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(tool, op, _)| (*tool, *op));
    for tool in ["memcheck", "initcheck", "synccheck", "racecheck"] {
        let of = || found.iter().filter(|(t, ..)| *t == tool);
        let named = |op: Option<&'static str>| op.unwrap_or("all ops");
        let verdict = |clean: bool| -> Vec<&str> {
            of().filter(|(.., verdict)| *verdict == Ok(clean)).map(|(_, op, _)| named(*op)).collect()
        };
        let (clean, open) = (verdict(true), verdict(false));
        if !clean.is_empty() {
            run.page.line(&format!("{tool}: clean: {}", clean.join(", ")));
        }
        if !open.is_empty() {
            run.page.line(&format!("{tool}: no verdict by the stage's end: {}", open.join(", ")));
        }
        for (_, op, verdict) in of() {
            if let Err(why) = verdict {
                run.page.fault(format!("{tool}, {}: {why}", named(*op)));
            }
        }
    }
    Ok(())
}

/// Returns true where a tool found nothing, false where it was stopped at the stage's end.
fn watched(run: &Run<'_>, tool: &str, op: Option<&str>) -> Result<bool, String> {
    if Instant::now() >= run.end {
        return Ok(false);
    }
    let logs = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (log, program) = (logs.path().join("log"), std::env::current_exe().map_err(|e| e.to_string())?);
    let mut command = Command::new("compute-sanitizer");
    command.args(["--tool", tool, "--error-exitcode", "9", "--log-file"]).arg(&log).arg(&program);
    command.args(["work", "cases", &run.options.card.to_string()]).args(op).process_group(0);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(true),
            Ok(Some(status)) => {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let first: Vec<&str> = said.lines().take(QUOTED).collect();
                return Err(format!("{status}\n{}", first.join("\n")));
            }
            Ok(None) if Instant::now() < run.end => std::thread::sleep(Duration::from_millis(200)),
            _ => {
                // Its whole group: the program under it would keep running.
                let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
                let _ = child.wait();
                return Ok(false);
            }
        }
    }
}
