//! Checkpoints of any number of ranks are read at any other, with every bit, whatever the strategy.

use super::*;
use crate::trainer::{Observer, Step, Trainer};
use crate::validate::Validation;
use crate::world;
use ambitus_compile::optimizer::{Optimizer, States};
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Sharding, Strategy, Units};
use ambitus_compile::pipeline::Trained;
use ambitus_exec::executor::{ExecError, state_place};
use ambitus_plan::budget::{RunPlan, Shape};
use ambitus_plan::device::Device;
use ambitus_plan::placement::Placement;
use ambitus_plan::session::{self, SessionOptions};

use ambitus_families::small;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::PlannedSession;
use ambitus_models::{Capacity, Model};
use ambitus_recipe::recipe::{DeviceChoice, Recipe};
use ambitus_store::{Fault, FaultDisk};
use std::collections::BTreeSet;
use std::sync::Arc;

/// States and nothing else.
struct Kept {
    planned: Arc<PlannedSession>,
    states: Vec<Vec<f32>>,
}

impl Kept {
    fn new(planned: &Arc<PlannedSession>) -> Kept {
        let states = planned.session.states.iter().map(|s| vec![0.0; s.ty.shape.elements()]).collect();
        Kept { planned: planned.clone(), states }
    }
}

impl Executor for Kept {
    fn planned(&self) -> &PlannedSession {
        &self.planned
    }
    fn arena_bytes(&self) -> u64 {
        0
    }
    fn write_state_at(&mut self, state: StateId, start: usize, data: &[f32]) -> Result<(), ExecError> {
        state_place(&self.planned, state, start, data.len())?;
        self.states[state.index()][start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn read_state_at(&self, state: StateId, start: usize, out: &mut [f32]) -> Result<(), ExecError> {
        state_place(&self.planned, state, start, out.len())?;
        out.copy_from_slice(&self.states[state.index()][start..start + out.len()]);
        Ok(())
    }
    fn write_f32(&mut self, _: &str, _: &str, _: usize, _: &[f32]) -> Result<(), ExecError> {
        Ok(())
    }
    fn write_i32(&mut self, _: &str, _: &str, _: usize, _: &[i32]) -> Result<(), ExecError> {
        Ok(())
    }
    fn run(&mut self, _: &str, _: usize) -> Result<(), ExecError> {
        Ok(())
    }
    fn read_f32(&self, _: &str, _: &str, _: usize, _: &mut [f32]) -> Result<(), ExecError> {
        Ok(())
    }
}

/// What a run trains and keeps.
struct Form {
    precision: Precision,
    trained: Trained,
    states: States,
}

/// A session of a form, and how ranks share it.
struct Shared {
    /// Of each rank, or of all.
    planned: Vec<Arc<PlannedSession>>,
    options: SessionOptions,
}

/// What ranks have of a model.
#[derive(Clone, Copy, Debug)]
enum How {
    Share(Strategy, Units),
    /// A part each; with a pipeline.
    Place(bool),
}

use How::{Place, Share};

/// Ranks and how they share: every strategy, and units of both kinds.
const WORLDS: [(usize, How); 5] = [
    (1, Share(Strategy::Full, Units::Blocks)),
    (2, Share(Strategy::GradOp, Units::Blocks)),
    (3, Share(Strategy::Full, Units::Parameters(3000))),
    (4, Share(Strategy::Hybrid(2), Units::Blocks)),
    (8, Share(Strategy::HybridGradOp(4), Units::Parameters(20_000))),
];

/// Ranks among which the model is placed, and others.
const PLACED: [(usize, How); 4] = [
    (1, Share(Strategy::Full, Units::Blocks)),
    (2, Place(false)),
    (3, Place(true)),
    (2, Share(Strategy::Full, Units::Blocks)),
];

/// Returns a model with a block for each of three ranks.
fn deep() -> Arc<dyn Model> {
    small::of_frames(32).model
}

fn shared(form: &Form, (ranks, how): (usize, How)) -> Shared {
    let device = Device::find(DeviceChoice::Cpu, 1).expect("a processor");
    let (sharding, placement) = match how {
        Share(strategy, units) => {
            let whole_groups = || Sharding::new(strategy, ranks).expect("whole groups");
            ((ranks > 1).then(|| Sharding { units, ..whole_groups() }), None)
        }
        Place(pipeline) => (None, Some(Placement::new(ranks, pipeline, u64::MAX))),
    };
    let capacity = Capacity { rows: 64, clips: 1 };
    let options = SessionOptions {
        capacity,
        checkpoint: Blocks::None,
        precision: form.precision,
        trained: form.trained.clone(),
        optimizer: Some(Optimizer {
            states: form.states,
            ..AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }.into()
        }),
        clip_per_tensor: false,
        update_in_backward: false,
        whole_updates: false,
        offload: Default::default(),
        sharding,
        placement,
        ema: true,
        evaluate: false,
        sample: None,
        speech: None,
    };
    let shape = Shape {
        model: deep(),
        session: options.clone(),
        beside: device.beside(),
        update_rows: 64,
        clip_rows: 64.0,
        micro_batches: 4,
        prepare_bytes: 0,
        planned_at_once: 1,
        looked_at_bytes: 0,
        data_bytes: 0,
        spoken: Default::default(),
    };
    let plan = RunPlan::new(shape, device.target()).expect("it compiles");
    let planned = match plan.parts {
        Some(parts) => parts.ranks,
        None => std::iter::repeat_n(plan.planned, ranks).collect(),
    };
    Shared { planned, options }
}

impl Shared {
    /// Runs `body` on every rank.
    fn each<T: Send>(
        &self,
        ranks: usize,
        body: impl Fn(&mut Kept, &World) -> Result<T, RunError> + Sync,
    ) -> Vec<T> {
        let layout = session::layout(&*deep(), &self.options).expect("it compiles");
        let placed = self.options.placement.is_some();
        let one = |world: &World| {
            let world = if placed { world.of_parts() } else { world.holding(layout.clone()) };
            body(&mut Kept::new(&self.planned[world.rank()]), &world)
        };
        match ranks {
            1 => vec![one(&World::alone()).expect("nothing fails")],
            n => world::in_process(n, one).expect("nothing fails"),
        }
    }

    /// Reads a checkpoint on all ranks and writes it again.
    fn again(&self, ranks: usize, from: &Checkpoint, to: &Path) -> Checkpoint {
        let dir = CheckpointDir::new(to);
        self.each(ranks, |exec, world| {
            restore(exec, from, world)?;
            // What no tensor has: zero, of codes the code of it.
            let mut of_tensors: Vec<Vec<bool>> = exec.states.iter().map(|s| vec![false; s.len()]).collect();
            for p in world.pieces(&exec.planned.session.states) {
                of_tensors[p.state.index()][p.at..p.at + p.range.len()].fill(true);
            }
            for ((s, values), of_tensor) in
                exec.planned.session.states.iter().zip(&exec.states).zip(&of_tensors)
            {
                let none = if s.ty.dtype == ir::DType::U8 { zero(&s.name) } else { 0.0 };
                for (x, _) in values.iter().zip(of_tensor).filter(|(_, of)| !**of) {
                    assert_eq!(*x, none, "padding of {}", s.name);
                }
            }
            save(exec, &dir, &saved_as(), world, Ok(()))
        });
        dir.latest_good().expect("readable").checkpoint.expect("whole")
    }
}

fn saved_as() -> Progress {
    Progress { update: 7, applied: vec![7], run: "a digest".to_owned(), ..Progress::default() }
}

/// Element i of a tensor: of its name and number, finite, in the state's type.
fn value(name: &str, dtype: ir::DType, i: usize) -> f32 {
    let hash = blake3::hash(format!("{name}.{i}").as_bytes());
    let x = (u16::from_le_bytes([hash.as_bytes()[0], hash.as_bytes()[1]]) as f32 - 32768.0) / 4096.0;
    let x = if name.starts_with("exp_avg_sq.") { x.abs() } else { x };
    match dtype {
        ir::DType::BF16 => f32::from_bits(x.to_bits() & 0xffff_0000),
        ir::DType::U8 => f32::from(hash.as_bytes()[2]),
        _ => x,
    }
}

/// Returns a checkpoint of one rank: numbers that differ everywhere.
fn base(form: &Shared, to: &Path) -> Checkpoint {
    let dir = CheckpointDir::new(to);
    form.each(1, |exec, world| {
        for (s, values) in exec.planned.session.states.iter().zip(&mut exec.states) {
            *values = (0..s.ty.shape.elements()).map(|k| value(&s.name, s.ty.dtype, k)).collect();
        }
        save(exec, &dir, &saved_as(), world, Ok(()))
    });
    dir.latest_good().expect("readable").checkpoint.expect("whole")
}

/// Returns every tensor of a checkpoint, gathered.
fn gathered(c: &Checkpoint) -> BTreeMap<String, (DType, Vec<usize>, Vec<f32>)> {
    let mut out = BTreeMap::new();
    for (kind, _) in FILES {
        let Some(files) = open(c, kind).expect("whole tensors") else { continue };
        for t in files.tensors() {
            let mut values = vec![f32::NAN; t.elements()];
            files
                .read_range(t.name(), 0..values.len(), &mut [0; 4096], |at, x| {
                    values[at..at + x.len()].copy_from_slice(x)
                })
                .expect("readable");
            out.insert(t.name().to_owned(), (t.dtype(), t.shape().to_vec(), values));
        }
    }
    out
}

/// Returns all pairs of numbers of ranks, from a checkpoint of one rank on.
fn every_pair(form: &Form, worlds: &[(usize, How)]) -> Vec<BTreeSet<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: String| folder.path().join(name);
    let all: Vec<Shared> = worlds.iter().map(|w| shared(form, *w)).collect();
    let first = base(&all[0], &at("base".to_owned()));
    let want = gathered(&first);
    assert!(want.len() > 40 && want.keys().any(|n| n.starts_with("ema.")));
    let same = |what: &str, have: &Checkpoint| {
        let have = gathered(have);
        assert!(have.keys().eq(want.keys()), "{what}: other tensors");
        for (name, tensor) in &want {
            assert!(have[name] == *tensor, "{what}: {name} differs");
        }
    };
    let mut files = Vec::new();
    for ((n, how), from) in worlds.iter().zip(&all) {
        let here = from.again(*n, &first, &at(format!("from-{n}-{}", files.len())));
        files.push(here.manifest.shards.iter().map(|s| s.name.clone()).collect());
        same(&format!("1 to {n} {how:?}"), &here);
        for (k, ((m, to_how), to)) in worlds.iter().zip(&all).enumerate() {
            let there = to.again(*m, &here, &at(format!("from-{n}-{}-to-{k}", files.len())));
            same(&format!("{n} {how:?} to {m} {to_how:?}"), &there);
        }
    }
    files
}

/// Ranks that share: every pair, and the files that they write.
fn every_pair_of_shares(form: &Form) {
    let files = every_pair(form, &WORLDS);
    // One file a kind of one rank, and of replicas of whole tensors; else one of each rank that holds a part.
    assert!(files[0].contains("model.safetensors") && files[0].len() == 3);
    assert!(files[2].contains("model.1-of-3.safetensors") && files[2].contains("ema.0-of-3.safetensors"));
    // Of hybrids one replica writes.
    assert!(files[3].iter().all(|n| n.ends_with("-of-2.safetensors")), "{:?}", files[3]);
    assert!(files[4].iter().all(|n| n.ends_with("-of-4.safetensors")), "{:?}", files[4]);
}

#[test]
fn parts_of_a_model() {
    for (precision, states) in [(Precision::Fp32, States::Fp32), (Precision::Bf16Pure, States::Bf16)] {
        let files = every_pair(&Form { precision, trained: Trained::All, states }, &PLACED);
        for (at, n) in [(1, 2), (2, 3)] {
            let of = |kind| (0..n).map(move |k| format!("{kind}.{k}-of-{n}.safetensors"));
            let want: BTreeSet<String> = ["model", "optimizer", "ema"].into_iter().flat_map(of).collect();
            assert_eq!(files[at], want, "{n} ranks");
        }
    }
}

#[test]
fn all_states_in_fp32() {
    every_pair_of_shares(&Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 });
}

#[test]
fn moments_in_8_bits() {
    let form = Form { precision: Precision::Fp16Mixed, trained: Trained::All, states: States::EightBit };
    // Codes of large tensors, numbers of small ones.
    let states = &shared(&form, WORLDS[0]).planned[0].session.states;
    let mut moments = states.iter().filter(|s| s.name.starts_with(FIRST_MOMENT));
    assert!(moments.clone().any(|s| s.ty.dtype == ir::DType::U8));
    assert!(moments.any(|s| s.ty.dtype == ir::DType::F32 && s.ty.shape.len() > 1));
    every_pair_of_shares(&form);
}

#[test]
fn weights_and_moments_in_bf16() {
    every_pair_of_shares(&Form {
        precision: Precision::Bf16Pure,
        trained: Trained::All,
        states: States::Bf16,
    });
}

#[test]
fn adapters() {
    let lora = Lora {
        rank: 3,
        alpha: 6.0,
        dropout: 0.0,
        rank_stabilised: false,
        targets: vec![Pattern::new("*.to_q"), Pattern::new("*.to_v")],
        also_train: vec![Pattern::new("*.text_embed.text_embed")],
    };
    let trained = Trained::Adapters(lora);
    every_pair_of_shares(&Form { precision: Precision::Fp32, trained, states: States::EightBit });
}

/// A rank that cannot write is named by all, and no checkpoint is left.
#[test]
fn a_rank_that_fails_leaves_none() {
    let form = Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 };
    let two = shared(&form, WORLDS[1]);
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CheckpointDir::new(folder.path().join("checkpoints"));
    let layout = session::layout(&*deep(), &two.options).expect("it compiles");
    let save_on = |fails: Option<usize>| {
        world::in_process(2, |world| {
            let world = world.holding(layout.clone());
            let exec = Kept::new(&two.planned[world.rank()]);
            if fails == Some(world.rank()) {
                return Err(RunError::Io("the disk is full".to_owned()));
            }
            save(&exec, &dir, &saved_as(), &world, Ok(()))
        })
    };
    for rank in [0, 1] {
        let error = save_on(Some(rank)).expect_err("a rank fails").to_string();
        assert_eq!(error, format!("rank {rank}: the disk is full"));
        assert!(dir.latest_good().expect("readable").checkpoint.is_none());
    }
    save_on(None).expect("the next is whole");
    assert!(dir.latest_good().expect("readable").checkpoint.is_some());
}

/// Wherever the disk is full, of whichever rank: all know, none waits, nothing half-written stays, and the next save is whole.
#[test]
fn a_full_disk_is_no_end() {
    let form = Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 };
    let layout = |of: &Shared| session::layout(&*deep(), &of.options).expect("it compiles");
    let (one, two) = (shared(&form, WORLDS[0]), shared(&form, WORLDS[1]));
    let folder = tempfile::tempdir().expect("a folder");
    let parent = folder.path().join("checkpoints");
    for (of, ranks) in [(&one, 1), (&two, 2)] {
        for full in 0..ranks {
            for at in 1.. {
                let disk = FaultDisk::new(Fault::Enospc, at, true);
                let save_on = |disk: &FaultDisk, update: u64| {
                    let body = |world: &World| {
                        let dir = match world.rank() == full {
                            true => CheckpointDir::on(Arc::new(disk.clone()), &parent),
                            false => CheckpointDir::new(&parent),
                        };
                        let world = world.holding(layout(of));
                        let exec = Kept::new(&of.planned[world.rank()]);
                        let progress = Progress { update, ..saved_as() };
                        match save(&exec, &dir, &progress, &world, Ok(())) {
                            Err(RunError::Full(_)) => Ok(false),
                            done => done.map(|()| true),
                        }
                    };
                    match ranks {
                        1 => vec![body(&World::alone()).expect("nothing else fails")],
                        n => world::in_process(n, body).expect("nothing else fails"),
                    }
                };
                let done = save_on(&disk, 7);
                // What is wanting at the very end only the first rank knows.
                assert!(
                    done.iter().all(|d| *d == done[0]) || (full == 0 && !done[0]),
                    "{ranks}: {full}, {at}: {done:?}"
                );
                let names = std::fs::read_dir(&parent).into_iter().flatten().flatten().map(|e| e.file_name());
                let left: Vec<_> = names.filter(|n| *n != "step-7").collect();
                assert!(left.is_empty(), "{full}, {at}: {left:?}");
                let fired = disk.fired();
                assert!(fired || done.iter().all(|d| *d));
                let again = save_on(&FaultDisk::new(Fault::Enospc, u64::MAX, false), 8);
                assert!(again.iter().all(|d| *d));
                let latest = CheckpointDir::new(&parent).latest_good().expect("readable").checkpoint;
                assert_eq!(latest.expect("whole").step, 8);
                std::fs::remove_dir_all(&parent).expect("a folder");
                if !fired {
                    break;
                }
            }
        }
    }
}

/// Clips of a run that has none.
struct NoClips;

impl ambitus_families::clips::Clips for NoClips {
    fn rows(&self) -> &[u32] {
        &[]
    }
    fn norms(
        &self,
        _: &[ambitus_families::clips::Use],
    ) -> Result<ambitus_models::Norms, ambitus_data::DataError> {
        Ok(ambitus_models::one_norm(1.0))
    }
    fn fill(
        &self,
        _: &[ambitus_families::clips::Use],
        _: &mut ambitus_models::Batch,
    ) -> Result<(), ambitus_data::DataError> {
        Ok(())
    }
}

/// What a run says.
#[derive(Default)]
struct Notes {
    notes: Vec<String>,
    ready: Option<RunError>,
    saved: usize,
}

impl Observer for Notes {
    fn step(&mut self, _: &Step, _: &Progress) -> Result<(), RunError> {
        Ok(())
    }
    fn before_save(&mut self) -> Result<(), RunError> {
        self.ready.take().map_or(Ok(()), Err)
    }
    fn saved(&mut self, _: u64, _: f64) {
        self.saved += 1;
    }
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

#[test]
fn a_run_goes_on_over_a_full_disk_but_for_its_end() {
    let form = Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 };
    let one = shared(&form, WORLDS[0]);
    let folder = tempfile::tempdir().expect("a folder");
    let disk = FaultDisk::new(Fault::Enospc, 5, true);
    let (full, good) = (CheckpointDir::on(Arc::new(disk), folder.path()), CheckpointDir::new(folder.path()));
    let capacity = one.options.capacity;
    let validation =
        Validation::new(Box::new(NoClips), deep(), capacity, Vec::new()).expect("nothing to pack");
    let recipe = Recipe::new("model", "data");
    let mut exec = Kept::new(&one.planned[0]);
    let mut trainer = Trainer {
        exec: &mut exec,
        recipe: &recipe,
        players: Vec::new(),
        acts: &[],
        updates: 9,
        whole_updates: false,
        validation: &validation,
        samples: None,
        checkpoints: Some(&good),
        progress: saved_as(),
        world: &World::alone(),
        meter: &mut ambitus_plan::memory::Meter::start(),
    };
    let mut said = Notes::default();
    trainer.save(&mut said, false).expect("there is room");
    trainer.progress.update = 8;
    trainer.checkpoints = Some(&full);
    trainer.save(&mut said, false).expect("the run continues");
    assert!(
        said.notes.len() == 1 && said.notes[0].contains("update 8: no checkpoint was saved"),
        "{:?}",
        said.notes
    );
    // A log that waits for room is no better.
    trainer.checkpoints = Some(&good);
    said.ready = Some(RunError::Full("the log".to_owned()));
    trainer.save(&mut said, false).expect("the run continues");
    assert!(said.notes.len() == 2 && said.saved == 1);
    trainer.checkpoints = Some(&full);
    let last = trainer.save(&mut said, true).expect_err("it was the last");
    assert_eq!((last.exit_code(), said.notes.len()), (6, 2));
    let kept: Vec<u64> = good.list().expect("readable").iter().map(|c| c.step).collect();
    assert_eq!(kept, [7]);
    // With room again the next is whole.
    trainer.checkpoints = Some(&good);
    trainer.save(&mut said, true).expect("there is room");
    assert_eq!(good.latest_good().expect("readable").checkpoint.expect("whole").step, 8);
    // What is no want of room is an end.
    said.ready = Some(RunError::Io("the log".to_owned()));
    assert!(trainer.save(&mut said, false).is_err());
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let form = Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 };
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoint = base(&shared(&form, WORLDS[0]), folder.path());
    assert_eq!(progress(&checkpoint).expect("whole"), saved_as());
    let mut other = checkpoint.clone();
    other.step = 8;
    assert_eq!(progress(&other).expect_err("of another step").exit_code(), 4);
    let mut more = checkpoint;
    more.manifest.meta["applied"] = 9.into();
    assert!(
        progress(&more).expect_err("more than there were").to_string().contains("of which 9 were applied")
    );
}

/// A resumed run leaves no more behind than one that was never killed, and does not take what it cannot read for old.
#[test]
fn what_was_not_pruned_is_pruned_later() {
    let form = Form { precision: Precision::Fp32, trained: Trained::All, states: States::Fp32 };
    let one = shared(&form, WORLDS[0]);
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CheckpointDir::new(folder.path());
    let exec = Kept::new(&one.planned[0]);
    let at = |update| Progress { update, best: Some((2, 0.5)), ..saved_as() };
    for update in 1..=6 {
        save(&exec, &dir, &at(update), &World::alone(), Ok(())).expect("there is room");
    }
    let model = folder.path().join("step-6/model.safetensors");
    std::fs::write(model, "damaged").expect("a file");
    std::fs::create_dir(folder.path().join("step-9.tmp")).expect("a folder");
    let names = || {
        let names = std::fs::read_dir(folder.path()).expect("a folder").flatten();
        names.map(|e| e.file_name().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
    };
    tidy(&dir, Some(&at(5)), 2).expect("it may be removed");
    assert!(names().iter().eq(["step-2", "step-4", "step-5", "step-6"]), "{:?}", names());
    tidy(&dir, None, 2).expect("there is nothing to remove");
    assert_eq!(names().len(), 4);
}

#[test]
fn padding_of_codes_means_zero() {
    for (state, signed) in [("exp_avg.w", true), ("exp_avg_sq.w", false)] {
        assert_eq!(ambitus_ir::ops::narrow::dynamic_map(signed)[zero(state) as usize], 0.0, "{state}");
    }
}
