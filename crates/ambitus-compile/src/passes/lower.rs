//! Lower: replaces what the target has no kernel for by what it has.
//!
//! - An op whose kernel takes f32 only is wrapped in casts. Before: `%5 = conv1d(%1, %2, %3, %4)` with `%1`, `%5` in
//!   bf16. After: `%6 = cast(%1) {f32}; %7 = conv1d(%6, %2, %3, %4); %5 = cast(%7) {bf16}`. The results are rounded once, as
//!   a kernel of these types would; the f32 copies live for one instruction.
//! - An op without a kernel becomes its decomposition. Before: `%5 = grn(%1, %2, %3, %4)`. After: the core ops of its page.
//!
//! Both keep provenance and phase. Every target has kernels for the core ops in f32, for casts, and for ops that overwrite
//! states: casts and decompositions make new values, and a state has to stay on its bytes.

use super::{Numerics, Pass};
use crate::CompileError;
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, DType, Instr, Phase, Program, Session, TensorType, ValueId};
use std::collections::HashMap;

/// The pass.
pub struct Lower<'t> {
    /// Where the program will run.
    pub target: &'t dyn Target,
}

impl Pass for Lower<'_> {
    fn name(&self) -> &'static str {
        "lower"
    }

    fn numerics(&self) -> Numerics {
        Numerics::Reordered
    }

    /// # Panics
    /// When the target lacks an op that neither casts nor a decomposition can stand for.
    fn run(&self, session: &mut Session, mut p: Program) -> Result<Program, CompileError> {
        // A decomposition may use fused ops in turn.
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut runs = |p: &Program, instr: &Instr| {
            p.signature_into(instr, &mut x, &mut y);
            // Nothing stands for what moves between places.
            instr.op.def().queue().is_some() || self.target.has_kernel(&instr.op, &x, &y)
        };
        while p.instrs.iter().any(|i| !runs(&p, i)) {
            let work = std::mem::take(&mut p.instrs);
            let mut with: HashMap<ValueId, ValueId> = HashMap::new();
            let mut b = Builder::resume(session, p, Phase::Forward);
            for mut instr in work {
                for v in &mut instr.inputs {
                    *v = with.get(v).copied().unwrap_or(*v);
                }
                if runs(b.program(), &instr) {
                    b.append(instr);
                    continue;
                }
                let Some(values) = self.between_casts(&mut b, &instr).or_else(|| decomposed(&mut b, &instr))
                else {
                    panic!(
                        "target {} lacks the op {} for {:?}, which cannot be lowered",
                        self.target.name(),
                        instr.op.name(),
                        b.program().signature(&instr).0
                    );
                };
                with.extend(instr.outputs.iter().copied().zip(values));
            }
            p = b.finish();
            super::simplify::substitute(&mut p, &with);
        }
        Ok(p)
    }
}

impl Lower<'_> {
    /// Returns the instruction on f32 copies of its 16-bit operands, its results cast back; `None` if that does not help.
    fn between_casts(&self, b: &mut Builder<'_>, instr: &Instr) -> Option<Vec<ValueId>> {
        let wide = |t: TensorType| {
            let narrow = t.dtype.is_float() && t.dtype != DType::F32;
            if narrow { TensorType::new(DType::F32, &t.shape) } else { t }
        };
        let (x, y) = b.program().signature(instr);
        let x: Vec<TensorType> = x.into_iter().map(wide).collect();
        let def = instr.op.def();
        let made = def.infer(&x).ok().filter(|_| def.donates().is_empty())?;
        if !self.target.has_kernel(&instr.op, &x, &made) {
            return None;
        }
        let cast = |b: &mut Builder<'_>, v: ValueId, to: DType| {
            let same = b.ty(v).dtype == to;
            if same { v } else { b.derived(&instr.origin, instr.origin.phase, |b| b.cast(v, to)) }
        };
        let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
        let mut inputs = instr.inputs.clone();
        for (v, t) in inputs.iter_mut().zip(&x) {
            *v = *copies.entry(*v).or_insert_with(|| cast(b, *v, t.dtype));
        }
        let results = b.push_at(instr.op.clone(), &inputs, instr.origin.clone());
        Some(results.into_iter().zip(y).map(|(v, t)| cast(b, v, t.dtype)).collect())
    }
}

fn decomposed(b: &mut Builder<'_>, instr: &Instr) -> Option<Vec<ValueId>> {
    let def = instr.op.def();
    b.derived(&instr.origin, instr.origin.phase, |b| {
        def.donates().is_empty().then(|| def.decompose(b, &instr.inputs)).flatten()
    })
}
