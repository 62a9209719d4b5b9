//! Results that overwrite operands have the same bits as results that do not.

use super::{bits, open, planned, run, run_here};
use crate::cpu::{AsyncMode, CpuTarget};
use ambitus_ir::ops::layout::Reshape;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, DType, Op, Program, Session, TensorType, ValueId};
use ambitus_testkit::{Case, Rng, Tensors, cases};

/// The CPU, without overwriting.
struct Apart(CpuTarget);

impl Target for Apart {
    fn name(&self) -> &str {
        "apart"
    }
    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        self.0.has_kernel(op, x, y)
    }
    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64 {
        self.0.workspace(op, x, y)
    }
    fn shares(&self, op: &Op, input: usize, output: usize) -> bool {
        op.def().donates().contains(&(input, output))
    }
    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        self.0.seconds(op, x, y)
    }
}

/// Returns a copy of a value that the planner may let die.
fn copied(b: &mut Builder<'_>, v: ValueId) -> ValueId {
    let shape = b.ty(v).shape;
    b.push1(Reshape { shape }, &[v])
}

/// Returns a case whose operands and results are transients.
fn inner_program(case: &Case) -> (Session, Program) {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "case");
    let inputs: Vec<ValueId> =
        case.types().into_iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), ty)).collect();
    let x: Vec<ValueId> = inputs.into_iter().map(|v| copied(&mut b, v)).collect();
    let y = b.push(case.op.clone(), &x);
    for (k, v) in y.into_iter().enumerate() {
        let v = copied(&mut b, v);
        b.output(&format!("y{k}"), v);
    }
    let program = b.finish();
    (session, program)
}

/// Results of instruction `op` that lie on an operand.
fn overwrites(planned: &PlannedSession, name: &str) -> usize {
    let p = &planned.programs[0];
    let instr = p.program.instrs.iter().find(|i| i.op.name() == name && !i.inputs.is_empty());
    instr.map_or(0, |i| {
        let on = |v: &&ValueId| i.inputs.iter().any(|x| p.place(*x) == p.place(**v));
        i.outputs.iter().filter(on).count()
    })
}

fn compare(
    name: &str,
    make: &dyn Fn() -> (Session, Program),
    inputs: &Tensors,
) -> std::sync::Arc<PlannedSession> {
    let mut results = Vec::new();
    let mut shared = None;
    for threads in [1, 2] {
        let near = CpuTarget::new(threads);
        let targets: [&dyn Target; 2] = [&near, &Apart(near)];
        for target in targets {
            let (session, program) = make();
            let planned = planned(session, program, target);
            let mut exec =
                open(&planned, threads, AsyncMode::Early).unwrap_or_else(|why| panic!("{name}: {why}"));
            results.push(bits(&run(&mut exec, "case", inputs, &Tensors::new())));
            shared.get_or_insert(planned);
        }
    }
    assert!(results.iter().all(|r| *r == results[0]), "{name}: sharing changes bits");
    shared.unwrap()
}

#[test]
fn every_case_has_the_same_bits_on_its_operands() {
    let target = CpuTarget::new(1);
    let donates = |c: &Case| !c.op.def().donates().is_empty() || c.op.def().props().starts;
    let types = [DType::F32, DType::BF16, DType::F16];
    let all = cases();
    let in_types = |c: &Case| types.map(|dtype| run_here(c, dtype, &target)).concat();
    for case in &all.iter().filter(|c| !donates(c)).flat_map(in_types).collect::<Vec<_>>() {
        let inputs = case.values().into_iter().enumerate().map(|(i, t)| (format!("x{i}"), t)).collect();
        let planned = compare(&case.name, &|| inner_program(case), &inputs);
        let types = case.types();
        let made = case.op.def().infer(&types).unwrap();
        let pairs = case.op.def().may_share();
        let can =
            pairs.iter().any(|&(i, o)| types[i].bytes() == made[o].bytes() && target.shares(&case.op, i, o));
        if can && !matches!(case.op, Op::Reshape(_)) {
            assert!(overwrites(&planned, case.op.name()) > 0, "{}: nothing is shared", case.name);
        }
    }
}

#[test]
fn random_programs_have_the_same_bits() {
    use ambitus_ir::ops::activation::ActivationKind;
    use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
    let shapes: [&[usize]; 3] = [&[6, 35], &[35, 6], &[210]];
    for seed in 0..60 {
        let make = || {
            let mut rng = Rng::new(seed);
            let mut session = Session::default();
            let mut b = Builder::new(&mut session, "case");
            let ty = TensorType::f32(shapes[0]);
            let mut live: Vec<ValueId> = (0..3).map(|i| b.input(&format!("x{i}"), ty)).collect();
            for _ in 0..40 {
                let shape = shapes[rng.below(shapes.len())];
                let mut pick = |b: &mut Builder<'_>| {
                    // Mostly recent values, so that many die young.
                    let near = live.len() - 1 - rng.below(live.len().min(4));
                    let v = live[near];
                    b.reshape(v, shape)
                };
                let (x, y) = (pick(&mut b), pick(&mut b));
                let v = match rng.below(8) {
                    0 => b.binary(BinaryKind::Max, x, y),
                    1 => b.sub(x, y),
                    2 => b.mul(x, y),
                    3 => b.unary(UnaryKind::Tanh, x),
                    4 => b.activation(ActivationKind::GeluTanh, x),
                    5 => b.select(x, y, x),
                    6 => b.swiglu(x, y),
                    _ => {
                        let grad = ambitus_ir::ops::activation::ActivationGrad { kind: ActivationKind::Silu };
                        b.push1(grad, &[x, y])
                    }
                };
                live.push(v);
            }
            let last = *live.last().unwrap();
            let out = copied(&mut b, last);
            b.output("y0", out);
            let program = b.finish();
            (session, program)
        };
        let mut rng = Rng::new(1000 + seed);
        let inputs: Tensors =
            (0..3).map(|i| (format!("x{i}"), rng.tensor(TensorType::f32(shapes[0]), -1.0, 1.0))).collect();
        compare(&format!("seed {seed}"), &make, &inputs);
    }
}
