//! States and activations on the host, on the CPU executor: the bits of a session without, with copies as early and as late
//! as is legal, in memory and on disk; in a smaller arena.

use ambitus_compile::optimizer::{Optimizer, Rule, States};
use ambitus_compile::passes::offload::{Kept, Offload};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{Options, Pipeline};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{DType, Session, StateId, StateKind};
use ambitus_testkit::Tensor;
use ambitus_testkit::toys::{Toy, states, toys};
use std::path::Path;

const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};
const THREADS: usize = 2;

fn planned(toy: &Toy, checkpoint: Blocks, offload: &Offload) -> PlannedSession {
    let target = CpuTarget::new(THREADS);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let options =
        Options { optimizer: Some(ADAMW), ema: true, offload: *offload, ..Options::new(checkpoint) };
    let s = Pipeline::new(&options, &target).session(s, vec![forward], Vec::new());
    plan(s.expect("the model is differentiable"), &target, 1)
}

/// Names and bits of all states after three updates.
fn after(toy: &Toy, exec: &mut CpuExecutor) -> Vec<(String, Vec<u32>)> {
    let planned = exec.planned().clone();
    let s = &planned.session;
    let start = states(s);
    for (i, d) in s.states.iter().enumerate() {
        let at_zero = matches!(d.kind, StateKind::Optimizer | StateKind::Counter | StateKind::Ema);
        let data = if at_zero { vec![0.0; d.ty.shape.elements()] } else { start[&d.name].to_f32() };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
    let mut inputs = toy.whole.clone();
    for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", 0.5), ("decay", 0.25)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let programs = planned.programs.iter().map(|p| &p.program);
    for p in programs.cycle().take(3 * planned.programs.len()) {
        for input in &p.inputs {
            let (t, name) = (&inputs[&input.name], &input.name);
            if t.ty.dtype == DType::I32 {
                let ints: Vec<i32> = t.data.iter().map(|x| *x as i32).collect();
                exec.write_i32(&p.name, name, 0, &ints).expect("an input");
            } else {
                exec.write_f32(&p.name, name, 0, &t.to_f32()).expect("an input");
            }
        }
        exec.run(&p.name, 0).expect("a step");
    }
    let read = |(i, d): (usize, &ambitus_ir::StateDecl)| {
        let mut data = vec![0.0; d.ty.shape.elements()];
        exec.read_state(StateId(i as u32), &mut data).expect("a state");
        assert!(data.iter().all(|x| x.is_finite()), "{}: {}", toy.name, d.name);
        (d.name.clone(), data.iter().map(|x| x.to_bits()).collect())
    };
    s.states.iter().enumerate().map(read).collect()
}

fn open(planned: &PlannedSession, copies: AsyncMode, disk: Option<&Path>) -> Result<CpuExecutor, ExecError> {
    CpuExecutor::open(planned.clone(), CpuOptions { threads: THREADS, copies, disk, ..CpuOptions::default() })
}

/// A folder of this test's own, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ambitus-offload-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn states_are_the_same_bits() {
    let folder = Folder::new("bits");
    let none = Offload { least: 0, near: 3, ..Offload::default() };
    let forms = [
        Offload { parameters: true, gradients: true, ..none },
        Offload { optimizer: 0.5, ema: true, ..none },
        Offload { activations: Kept::All, ..none },
        Offload { least: 0, near: 3, ..Offload::all() },
    ];
    for toy in toys() {
        for checkpoint in [Blocks::None, Blocks::All] {
            let plain = planned(&toy, checkpoint.clone(), &Offload::default());
            let want = after(&toy, &mut open(&plain, AsyncMode::Early, None).expect("a small arena"));
            for form in &forms {
                let planned = planned(&toy, checkpoint.clone(), form);
                assert!(planned.host_bytes > 0);
                for (copies, disk) in [
                    (AsyncMode::Early, None),
                    (AsyncMode::Late, None),
                    (AsyncMode::Early, Some(folder.0.as_path())),
                    (AsyncMode::Late, Some(folder.0.as_path())),
                ] {
                    let mut exec = open(&planned, copies, disk).expect("small arenas");
                    assert_eq!(exec.arena_bytes(), planned.arena_bytes());
                    for (want, have) in want.iter().zip(after(&toy, &mut exec)) {
                        assert!(*want == have, "{}: {}, {form:?}, {copies:?}", toy.name, want.0);
                    }
                }
            }
        }
    }
    let left = std::fs::read_dir(&folder.0).expect("the folder").count();
    assert_eq!(left, 0, "the file has no name");
}

#[test]
fn a_folder_that_cannot_be_written_is_said() {
    let folder = Folder::new("fault");
    let file = folder.0.join("file");
    std::fs::write(&file, "").expect("a file");
    let [toy, ..] = toys();
    let planned = planned(&toy, Blocks::None, &Offload { least: 0, ..Offload::all() });
    let Err(ExecError::Disk(why)) = open(&planned, AsyncMode::Early, Some(&file)) else {
        panic!("a file is no folder");
    };
    assert!(why.contains(&file.display().to_string()) && why.contains("offload.disk"), "{why}");
}
