//! What placed programs look like, what they say about memory, and that they read back.

use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::place::{Cut, pipeline as pipelined, place};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::unroll::unroll;
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::plan;
use ambitus_ir::ops::collective;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::text::{parse, print_program, print_session};
use ambitus_ir::{Builder, Program, Session, StateKind, TensorType};
use ambitus_testkit::owners;
use ambitus_testkit::paper::FULL;
use ambitus_testkit::toys::{Toy, deep_toys};
use expect_test::expect;

/// Two blocks of a product each, a mask of the input that both read, and a sum.
fn two_blocks(s: &mut Session) -> Program {
    let mut b = Builder::new(s, "forward");
    let mut x = b.input("x", TensorType::f32(&[4, 8]));
    let mask = b.mul(x, x);
    for block in 0..2 {
        x = b.block("blocks", block, |b| {
            let w = b.parameter("weight", &[8, 8]);
            let y = b.linear(x, w, None);
            b.mul(y, mask)
        });
    }
    let rows = b.reduce(ReduceKind::Sum, x, 1);
    let sum = b.reduce(ReduceKind::Sum, rows, 0);
    let loss = b.reshape(sum, &[1]);
    b.output("loss", loss);
    b.finish()
}

#[test]
fn each_rank_has_its_block() {
    let mut s = Session::default();
    let p = two_blocks(&mut s);
    s.programs.push(p);
    let parts = place(&s, &Cut { starts: vec![1] });
    let text: String = parts.iter().map(|part| print_program(part, &part.programs[0])).collect();
    expect![[r#"
        program forward {
          block blocks.0
          block blocks.1
          %0 = input x f32[4,8]
          %2 = state blocks.0.weight
          %1 = binary(%0, %0) {kind=mul} : f32[4,8] @ binary fwd
          %3 = linear(%0, %2) : f32[4,8] @ blocks.0.linear fwd
          %4 = binary(%3, %1) {kind=mul} : f32[4,8] @ blocks.0.binary fwd
          %11 = transfer_start(%4) {queue=4, route=0>1/2, end=send, dtype=f32, shape=[4,8]} : u8[1] @ blocks.0.binary.transfer fwd
          _ = collective_done(%4, %11) {queue=4, members=2, sources=1, results=0} :  @ blocks.0.binary.transfer fwd
          %12, %13 = transfer_start() {queue=4, route=1>0/2, end=receive, dtype=f32, shape=[1]} : f32[1], u8[1] @ reshape.transfer fwd
          %10 = collective_done(%12, %13) {queue=4, members=2, sources=0, results=1} : f32[1] @ reshape.transfer fwd
          %14 = reshape(%10) {shape=[1]} : f32[1] @ loss.transfer update
          output loss %14
          unused %5 f32[8,8]
          unused %6 f32[4,8]
          unused %7 f32[4,8]
          unused %8 f32[4,1]
          unused %9 f32[1,1]
        }
        program forward {
          block blocks.0
          block blocks.1
          %0 = input x f32[4,8]
          %5 = state blocks.1.weight
          %1 = binary(%0, %0) {kind=mul} : f32[4,8] @ binary fwd
          %11, %12 = transfer_start() {queue=4, route=0>1/2, end=receive, dtype=f32, shape=[4,8]} : f32[4,8], u8[1] @ blocks.0.binary.transfer fwd
          %4 = collective_done(%11, %12) {queue=4, members=2, sources=0, results=1} : f32[4,8] @ blocks.0.binary.transfer fwd
          %6 = linear(%4, %5) : f32[4,8] @ blocks.1.linear fwd
          %7 = binary(%6, %1) {kind=mul} : f32[4,8] @ blocks.1.binary fwd
          %8 = reduce(%7) {kind=sum, axis=1} : f32[4,1] @ reduce fwd
          %9 = reduce(%8) {kind=sum, axis=0} : f32[1,1] @ reduce~2 fwd
          %10 = reshape(%9) {shape=[1]} : f32[1] @ reshape fwd
          %13 = transfer_start(%10) {queue=4, route=1>0/2, end=send, dtype=f32, shape=[1]} : u8[1] @ reshape.transfer fwd
          _ = collective_done(%10, %13) {queue=4, members=2, sources=1, results=0} :  @ reshape.transfer fwd
          output loss %10
          unused %2 f32[8,8]
          unused %3 f32[4,8]
        }
    "#]].assert_eq(&text);
}

#[test]
fn micro_batches_are_laid_one_behind_another() {
    let mut s = Session::default();
    let forward = two_blocks(&mut s);
    let p =
        pipeline::micro(&mut s, forward, Options::new(Blocks::None), &FULL).expect("a sum has a gradient");
    let (unrolled, steps) = unroll(&mut s, &p, 3);
    assert_eq!((unrolled.instrs.len(), steps.len()), (3 * p.instrs.len() + 1, 3 * p.instrs.len() + 1));
    let names = |p: &Program| p.inputs.iter().map(|i| i.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&p), names(&unrolled)),
        (vec!["x".into(), "beta".into()], {
            let all = ["x@0", "x@1", "x@2", "beta"];
            all.map(str::to_owned).to_vec()
        })
    );
    assert!(steps.windows(2).all(|w| (w[0].backward, w[0].micro_batch) <= (w[1].backward, w[1].micro_batch)));
    ambitus_ir::verify::verify(&s, &unrolled).expect("a program");
}

/// A whole session: micro-batches in one program, and their update.
fn session(toy: &Toy, count: usize) -> Session {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let p = pipeline::micro(&mut s, forward, Options::new(Blocks::First(1)), &FULL).expect("a model");
    let (micro, _) = unroll(&mut s, &p, count);
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let update = optimizer::update(&mut s, &Optimizer::from(adamw));
    let update = pipeline::plain(&mut s, update, &FULL);
    s.programs = vec![micro, update];
    s
}

#[test]
fn parts_are_planned_and_read_back() {
    for toy in &deep_toys() {
        let s = session(toy, 3);
        for part in place(&s, &Cut { starts: vec![1, 2] }) {
            let text = print_session(&part);
            assert!(parse(&text).unwrap_or_else(|e| panic!("{}: {e}", toy.name)) == part, "{}", toy.name);
            owners::check(&plan(part, &FULL, 1), &FULL);
        }
    }
}

/// Weights and gradients stay at home: what travels in a micro-batch is as long as rows are, or a scalar.
#[test]
fn no_weight_travels() {
    for toy in &deep_toys() {
        let s = session(toy, 1);
        let biggest = s.states.iter().filter(|s| s.kind == StateKind::Parameter).map(|s| s.ty.shape);
        let weights: Vec<_> = biggest.filter(|shape| shape.len() > 1).collect();
        for part in place(&s, &Cut { starts: vec![1, 2] }) {
            let sent = part.programs[0].instrs.iter().filter(|i| collective::ranks(&i.op).is_some());
            let types = sent.flat_map(|i| i.inputs.iter().map(|v| part.programs[0].ty(*v)));
            for ty in types {
                assert!(!weights.contains(&ty.shape), "{}: {ty} is sent", toy.name);
            }
        }
    }
}

/// In a pipeline nothing but the rows between the blocks travels, once each way, and the losses at the end: the head is at home
/// behind the last block, in whatever order micro-batches go.
#[test]
fn a_pipeline_sends_rows_forward_and_their_gradients_back() {
    let [_, _, toy] = deep_toys();
    const COUNT: usize = 4;
    for interleaved in [false, true] {
        let mut s = Session::default();
        let forward = (toy.model)(&mut s);
        let p = pipeline::micro(&mut s, forward, Options::new(Blocks::None), &FULL).expect("a model");
        s.programs = vec![p];
        let cut = Cut { starts: vec![1, 2] };
        if interleaved {
            assert!(pipelined(&mut s, 0, COUNT, &cut));
        } else {
            let p = s.programs.remove(0);
            let (p, _) = unroll(&mut s, &p, COUNT);
            s.programs.push(p);
        }
        let parts = place(&s, &cut);
        let sent = |part: &Session| {
            let starts = part.programs[0].instrs.iter().filter(|i| collective::ranks(&i.op).is_some());
            starts
                .flat_map(|i| i.inputs.iter().map(|v| part.programs[0].ty(*v).shape.len()))
                .collect::<Vec<_>>()
        };
        let rows: Vec<usize> =
            parts.iter().map(|p| sent(p).iter().filter(|axes| **axes == 2).count()).collect();
        assert_eq!(rows, [COUNT, 2 * COUNT, COUNT], "interleaved: {interleaved}");
        // Each of the last rank's losses goes to both others.
        assert_eq!(sent(&parts[2]).len(), COUNT + 2 * COUNT);
    }
}
