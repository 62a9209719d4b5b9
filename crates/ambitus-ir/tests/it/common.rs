//! What the tests of the text form share.

use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::Attention;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::{Builder, Session, StateKind, TensorType, ValueId};

/// A session that uses every part of the text form.
pub fn sample() -> Session {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "micro");
    let x = b.input("mel", TensorType::f32(&[12, 100]));
    let segs = b.input("segments", TensorType::i32(&[4]));
    let y = b.block("blocks", 0, |b| {
        let w = b.parameter("attn.weight", &[48, 100]);
        let bias = b.parameter("attn.bias", &[48]);
        let q = b.linear(x, w, Some(bias));
        let op = Attention { heads: 2, kv_heads: 2, head_dim: 24, causal: true, scale: 0.2041 };
        let o = b.self_attention(op, q, q, q, segs);
        let twice = b.add(o, o);
        b.activation(ActivationKind::GeluTanh, twice)
    });
    let (gradient, old) =
        b.declare("blocks.0.attn.bias gradient", TensorType::f32(&[48]), StateKind::Gradient);
    let fresh = b.column_sum(y);
    let beta = b.input("beta", TensorType::f32(&[1]));
    let new = b.accumulate(old, fresh, beta);
    b.give_back(gradient, new);
    let (copy, token) = b.copy_start(y, 1, Space::Host);
    let kept = b.copy_done(y, (copy, token), 1);
    b.output("hidden \"states\"", kept);
    let micro = b.finish();
    session.programs.push(micro);

    let mut b = Builder::new(&mut session, "update");
    let w = b.session().state("blocks.0.attn.bias").expect("declared");
    let g = b.session().state("blocks.0.attn.bias gradient").expect("declared");
    let g = b.state(g);
    let weight = b.state(w);
    let ty = TensorType::f32(&[48]);
    let (m, m_in) = b.declare("m", ty, StateKind::Optimizer);
    let (v, v_in) = b.declare("v", ty, StateKind::Optimizer);
    let scalars: Vec<ValueId> = ["lr", "coefficient", "step", "apply"]
        .iter()
        .map(|name| b.input(name, TensorType::f32(&[1])))
        .collect();
    let op = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let mut x = vec![weight, g, m_in, v_in];
    x.extend(scalars);
    let y = b.push(op, &x);
    for (id, value) in [w, m, v].into_iter().zip(y) {
        b.give_back(id, value);
    }
    let mut update = b.finish();
    // Types that nothing defines stay, so that numbers need not change.
    update.new_value(TensorType::f32(&[7, 33]));
    update.new_value(TensorType { pitch: 40, ..TensorType::f32(&[3, 5]) });
    session.programs.push(update);
    session
}
