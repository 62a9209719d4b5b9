//! Parity of every op: the test kit's cases on a card against the reference interpreter.

use ambitus_compile::plan::plan;
use ambitus_cuda::driver::Card;
use ambitus_cuda::{CudaExecutor, CudaTarget};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::ops::elementwise::Cast;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, DType, Instr, Op, Output, Session, TensorType, ValueId};
use ambitus_testkit::tolerances::{SIXTEEN_BIT, differs, f32_against_f64, on_tensor_cores, relative};
use ambitus_testkit::{Case, Interp, Rounding, Tensor, cases};
use std::sync::Arc;

/// Relative L2 distance of fp32 results.
pub const F32: f64 = 1e-5;

/// What came of a walk over the cases.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Cases that ran.
    pub cases: usize,
    /// The largest relative L2 distance, and whose.
    pub worst: (f64, String),
    /// What was wrong.
    pub faults: Vec<String>,
    /// Bits of all results, in order.
    pub bits: Vec<Vec<u64>>,
}

/// Runs the cases that the card has a kernel for, with operands in an element type in every way in which programs mix types.
pub fn check(mut card: Card, dtype: DType, cases: &[Case]) -> (Option<Card>, Outcome) {
    let info = card.info().clone();
    let target = CudaTarget::new(info.capability, info.rates);
    let mut interp = Interp::new(Rounding::Exact);
    let mut outcome = Outcome::default();
    for case in cases.iter().flat_map(|case| case.variants_in(dtype)).filter(|case| runs(case, &target)) {
        // Some decompositions, so the interpreter, are of f32 only.
        let Ok(want) = case.expected(&mut interp) else { continue };
        outcome.cases += 1;
        match run(&case, &target, card) {
            (Some(back), Ok(got)) => {
                card = back;
                judge(&case, dtype, &want, &got, &mut outcome);
            }
            (Some(back), Err(why)) => {
                card = back;
                outcome.faults.push(format!("{}: {why}", case.name));
            }
            (None, result) => {
                let why = result.err().unwrap_or_default();
                outcome.faults.push(format!("{}: {why}; nothing further was tried", case.name));
                return (None, outcome);
            }
        }
    }
    (Some(card), outcome)
}

/// Returns true when the card has a kernel for a case.
fn runs(case: &Case, target: &CudaTarget) -> bool {
    let x = case.types();
    case.op.def().infer(&x).is_ok_and(|y| target.has_kernel(&case.op, &x, &y))
}

/// Runs every op whose results may lie on its operands with and without sharing bytes: how many results did lie on
/// operands, and the cases whose bits differ.
pub fn check_sharing(mut card: Card) -> (usize, Vec<String>) {
    let info = card.info().clone();
    let near = CudaTarget::new(info.capability, info.rates);
    let (mut shared, mut faults) = (0, Vec::new());
    for base in cases() {
        for dtype in [DType::F32, DType::BF16] {
            let Some(case) = base.in_type(dtype) else { continue };
            let def = case.op.def();
            if !runs(&case, &near) || !def.donates().is_empty() || def.may_share().is_empty() {
                continue;
            }
            let mut results = Vec::new();
            for target in [&near as &dyn Target, &Apart(near)] {
                let planned = on_copies(&case, target);
                if results.is_empty() {
                    shared += on_operands(&planned, &case);
                }
                match bits(&case, planned, card) {
                    (back, Ok(bits)) => {
                        card = back;
                        results.push(bits);
                    }
                    (back, Err(why)) => {
                        card = back;
                        faults.push(format!("{}: {why}", case.name));
                    }
                }
            }
            if results.windows(2).any(|pair| pair[0] != pair[1]) {
                faults.push(format!("{}: other bits on its operands' bytes", case.name));
            }
        }
    }
    (shared, faults)
}

/// A card whose results never lie on operands.
struct Apart(CudaTarget);

impl Target for Apart {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        self.0.has_kernel(op, x, y)
    }
    fn workspace(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> u64 {
        self.0.workspace(op, x, y)
    }
    fn shares(&self, _: &Op, _: usize, _: usize) -> bool {
        false
    }
    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        self.0.seconds(op, x, y)
    }
}

/// Returns the op on copies of its inputs: only values of the program may be overwritten.
fn on_copies(case: &Case, target: &dyn Target) -> Arc<PlannedSession> {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "case");
    let copy = |b: &mut Builder<'_>, v| {
        let dtype = b.ty(v).dtype;
        if dtype.is_float() { b.push1(Cast { to: dtype }, &[v]) } else { v }
    };
    let inputs: Vec<ValueId> =
        case.types().iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), *ty)).collect();
    let x: Vec<ValueId> = inputs.into_iter().map(|v| copy(&mut b, v)).collect();
    let y = b.push(case.op.clone(), &x);
    for (k, v) in y.into_iter().enumerate() {
        let v = copy(&mut b, v);
        b.output(&format!("y{k}"), v);
    }
    let program = b.finish();
    session.programs.push(program);
    Arc::new(plan(session, target, 1))
}

/// Counts the op's results that lie on one of its operands.
fn on_operands(planned: &PlannedSession, case: &Case) -> usize {
    let p = planned.program("case").expect("the case's program");
    let own = p.program.instrs.iter().filter(|i| i.op == case.op);
    let on =
        |i: &Instr| i.outputs.iter().filter(|o| i.inputs.iter().any(|x| p.place(*x) == p.place(**o))).count();
    own.map(on).sum()
}

/// Returns the bytes of every output.
fn bits(case: &Case, planned: Arc<PlannedSession>, card: Card) -> (Card, Result<Vec<Vec<u8>>, String>) {
    let mut exec = match CudaExecutor::open(planned.clone(), card, None) {
        Ok(exec) => exec,
        Err(e) => return (e.card, Err(e.why.to_string())),
    };
    let p = planned.program("case").expect("the case's program");
    let mut all = || {
        for (i, t) in case.values().iter().enumerate() {
            let input = p.program.input(&format!("x{i}")).expect("an input");
            exec.write_bytes(p.place(input), &t.to_bytes())?;
        }
        exec.run("case", 0)?;
        let read = |o: &Output| exec.read_bytes(p.place(o.value), p.program.ty(o.value).bytes() as usize);
        p.program.outputs.iter().map(read).collect::<Result<Vec<_>, ExecError>>()
    };
    let found = all().map_err(|e| e.to_string());
    (exec.into_card(), found)
}

/// Results and states by name.
type Results = Vec<(String, Tensor)>;

fn judge(case: &Case, dtype: DType, want: &[Tensor], got: &Results, outcome: &mut Outcome) {
    for (name, got) in got {
        // The interpreter is exact; a result of another type is rounded once.
        let exact = case.result(want, name);
        let mut want = exact.clone();
        want.ty = got.ty;
        want.round();
        if dtype != DType::F32
            && let Some(most) = on_tensor_cores(case.op.name(), got.ty.dtype)
        {
            let off = relative(&got.data, &exact.data);
            if off > most {
                outcome
                    .faults
                    .push(format!("{}: {name} is {off:.1e} from exact, at most {most:.0e}", case.name));
            }
        }
        let off = relative(&got.data, &want.data);
        if off > outcome.worst.0 {
            outcome.worst = (off, case.name.clone());
        }
        let most = if dtype == DType::F32 { F32 } else { SIXTEEN_BIT };
        if off > most {
            outcome.faults.push(format!("{}: {name} is off by {off:.1e}", case.name));
        }
        if dtype == DType::F32
            && let Some((at, got, want)) = differs(&got.data, &want.data, f32_against_f64(case.op.name()))
        {
            outcome.faults.push(format!("{}: {name}[{at}] is {got}, not {want}", case.name));
        }
        outcome.bits.push(got.data.iter().map(|x| x.to_bits()).collect());
    }
}

/// Runs a case on its planned bytes, in memory full of NaN. Pads must be zero.
fn run(case: &Case, target: &dyn Target, card: Card) -> (Option<Card>, Result<Results, String>) {
    let (mut session, program) = case.program();
    session.programs.push(program);
    let planned: Arc<PlannedSession> = Arc::new(plan(session, target, 1));
    let mut exec = match CudaExecutor::open(planned.clone(), card, None) {
        Ok(exec) => exec,
        Err(e) => return (Some(e.card), Err(e.why.to_string())),
    };
    let results = on(&mut exec, case, &planned);
    match results {
        Ok(results) => (Some(exec.into_card()), results),
        Err(why) => (None, Err(why.to_string())),
    }
}

fn on(
    exec: &mut CudaExecutor,
    case: &Case,
    planned: &PlannedSession,
) -> Result<Result<Results, String>, ExecError> {
    exec.poison()?;
    let p = planned.program("case").expect("the case's program");
    let (inputs, states) = case.feeds();
    for (name, t) in inputs {
        let at = p.place(p.program.input(&name).expect("an input"));
        exec.write_bytes(at, &t.to_bytes())?;
    }
    for (name, t) in states {
        let (_, at) = planned.state(&name).expect("a state");
        exec.write_bytes(at, &t.to_bytes())?;
    }
    exec.run("case", 0)?;
    let outputs = p.program.outputs.iter().map(|o| (o.name.clone(), o.value));
    let states = p.program.states.iter();
    let states = states.map(|s| (planned.session.states[s.state.index()].name.clone(), s.leaves));
    let mut results = Vec::new();
    for (name, value) in outputs.chain(states) {
        let ty = p.program.ty(value);
        let bytes = exec.read_bytes(p.place(value), ty.bytes() as usize)?;
        let (row, used) = (ty.pitch * ty.dtype.size(), ty.shape.cols() * ty.dtype.size());
        if bytes.chunks(row.max(1)).any(|r| r[used..].iter().any(|b| *b != 0)) {
            return Ok(Err(format!("the pads of {name} are not zero")));
        }
        results.push((name, Tensor::from_bytes(ty, &bytes)));
    }
    Ok(Ok(results))
}
