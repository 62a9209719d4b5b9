//! The text form: golden texts, exact round trips, errors with places.

use crate::common::sample;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::elementwise::{Fill, UnaryKind};
use ambitus_ir::ops::random::Dropout;
use ambitus_ir::text::{parse, parse_program, print_program, print_session};
use ambitus_ir::{Builder, DType, Phase, Session, Shape, StateDecl, StateKind, TensorType};
use expect_test::{Expect, expect};

#[test]
fn golden() {
    let expected = expect![[r#"
        state blocks.0.attn.weight = parameter f32[48,100] trainable
        state blocks.0.attn.bias = parameter f32[48] trainable
        state "blocks.0.attn.bias gradient" = gradient f32[48]
        state m = optimizer f32[48]
        state v = optimizer f32[48]

        program micro {
          block blocks.0
          %0 = input mel f32[12,100]
          %1 = input segments i32[4]
          %12 = input beta f32[1]
          %2 = state blocks.0.attn.weight
          %3 = state blocks.0.attn.bias
          %9 = state "blocks.0.attn.bias gradient"
          %4 = linear(%0, %2, %3) : f32[12,48] @ blocks.0.linear fwd
          %5, %6 = attention(%4, %4, %4, %1, %1) {heads=2, kv_heads=2, head_dim=24, causal=true, scale=0.2041} : f32[12,48], f32[12,2] @ blocks.0.attention fwd
          %7 = binary(%5, %5) {kind=add} : f32[12,48] @ blocks.0.binary fwd
          %8 = activation(%7) {kind=gelu_tanh} : f32[12,48] @ blocks.0.activation fwd
          %10 = reduce(%8) {kind=sum, axis=0} : f32[1,48] @ reduce fwd
          %11 = reshape(%10) {shape=[48]} : f32[48] @ reshape fwd
          %13 = accumulate(%9, %11, %12) : f32[48] @ accumulate fwd
          %14, %15 = copy_start(%8) {queue=1, to=host} : f32[12,48], u8[1] @ copy_start fwd
          %16 = copy_done(%8, %14, %15) {queue=1} : f32[12,48] @ copy_done fwd
          state "blocks.0.attn.bias gradient" leaves %13
          output "hidden \"states\"" %16
        }

        program update {
          %4 = input lr f32[1]
          %5 = input coefficient f32[1]
          %6 = input step f32[1]
          %7 = input apply f32[1]
          %0 = state "blocks.0.attn.bias gradient"
          %1 = state blocks.0.attn.bias
          %2 = state m
          %3 = state v
          %8, %9, %10 = adamw(%1, %0, %2, %3, %4, %5, %6, %7) {beta1=0.9, beta2=0.999, eps=0.00000001, weight_decay=0.01} : f32[48], f32[48], f32[48] @ adamw fwd
          state blocks.0.attn.bias leaves %8
          state m leaves %9
          state v leaves %10
          unused %11 f32[7,33]
          unused %12 f32[3,5]/40
        }
    "#]];
    expected.assert_eq(&print_session(&sample()));
}

#[test]
fn round_trips() {
    let session = sample();
    let text = print_session(&session);
    let again = parse(&text).expect("what was printed reads");
    assert_eq!(again, session);
    assert_eq!(again.to_string(), text);
    for p in &session.programs {
        let one = parse_program(&session, &print_program(&session, p));
        assert_eq!(one.as_ref(), Ok(p));
    }
}

#[test]
fn comments_and_blanks_mean_nothing() {
    let text = "\n# a session\n\tstate w=parameter f32[4]trainable # a weight\r\nprogram p{\n\n%0=state w\n}";
    let session = parse(text).expect("reads");
    assert_eq!(session.states[0].name, "w");
    assert_eq!(session.programs[0].states.len(), 1);
}

#[test]
fn round_trips_of_odd_names_numbers_and_layouts() {
    let mut session = Session::default();
    for name in ["", " ", "a b", "\"", "\\", "\n\t\0", "ключ", "leaves", "%3", "#", "a}b", "𝄞", "~/:-."]
    {
        session.declare(StateDecl {
            name: name.to_owned(),
            ty: TensorType { pitch: 64, ..TensorType::new(DType::BF16, &[3, 33]) },
            kind: StateKind::Counter,
            trainable: name.is_empty(),
            home: if name.len() > 1 { Space::Host } else { Space::Device },
        });
    }
    let mut b = Builder::new(&mut session, "of {odd} things");
    for value in [0.1, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::EPSILON, 1.0 / 3.0] {
        for dims in [&[][..], &[0], &[2, 0, 33], &[1, 2, 3, 4]] {
            let shape = Shape::new(dims);
            let x = b.push1(Fill { value, dtype: DType::F16, shape }, &[]);
            b.unary(UnaryKind::Neg, x);
        }
    }
    let x = b.input("x", TensorType::f32(&[2, 3]));
    let keys = b.input("keys # of dropout", TensorType::i32(&[1, 2]));
    let segs = b.input("segs", TensorType::i32(&[2]));
    b.push(Dropout { p: 0.1, id: u64::MAX }, &[x, keys, segs]);
    let mut p = b.finish();
    for (instr, (phase, _)) in p.instrs.iter_mut().zip(Phase::ALL.into_iter().cycle()) {
        instr.origin.phase = phase;
        if phase == Phase::Backward {
            instr.origin.path = format!("{}; \"drop\" table", instr.origin.path).into();
        }
    }
    session.programs.push(p);
    let text = print_session(&session);
    assert_eq!(parse(&text).as_ref(), Ok(&session), "{text}");
}

/// Parts of states have their first element and their type.
#[test]
fn parts_of_states_read_back() {
    let text = "state w = parameter f32[256,35]\nstate m = optimizer u8[1024]\n\nprogram p {\n  \
                %0 = input beta f32[1]\n  \
                %1 = state w from 0 f32[64,35]\n  \
                %2 = state w from 2240 f32[192,35]\n  \
                %3 = state m from 256 u8[512]\n  \
                %4 = accumulate(%2, %2, %0) : f32[192,35] @ a update\n  \
                state w from 2240 leaves %4\n}\n";
    let session = parse(text).expect("the text parses");
    assert_eq!(print_session(&session), text);
    let firsts: Vec<usize> = session.programs[0].states.iter().map(|s| s.first).collect();
    assert_eq!(firsts, [0, 2240, 256]);
    for (part, why) in [
        ("w from 1 f32[64,35]", "not a whole row"),
        ("w from 35 f32[64,35]", "not where values may begin"),
        ("w from 0 f32[64]", "rows have pads"),
        ("w from 2240 f32[193,35]", "past the end"),
        ("w from 0 bf16[64,35]", "another element type"),
        ("m from 18446744073709551615 u8[512]", "far past the end"),
        ("m from -1 u8[512]", "no element"),
    ] {
        let text = format!(
            "state w = parameter f32[256,35]\nstate m = optimizer u8[1024]\nprogram p {{\n%0 = state {part}\n}}"
        );
        assert!(parse(&text).is_err(), "{part}: {why}");
    }
}

/// Malformed programs print: reports of broken invariants show them.
#[test]
fn prints_what_is_malformed() {
    let mut session = sample();
    let mut p = session.programs[0].clone();
    session.states.clear();
    p.types.truncate(3);
    let text = print_program(&session, &p);
    assert!(text.contains("= state ?0\n") && text.contains(" : ? @ "), "{text}");
}

#[test]
fn errors_say_where_and_what() {
    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&parse(text).expect_err("must not read").to_string());
    }
    let program = |lines: &str| format!("state w = parameter f32[4]\nprogram p {{\n{lines}\n}}\n");
    check("stat w", expect!["line 1, column 1: `state` or `program` is expected, found `stat w`"]);
    check(
        "state w = weight f32[4]",
        expect!["line 1, column 11: a kind of state is expected, found `weight f32[4]`"],
    );
    check("state w = parameter f64[4]", expect!["line 1, column 21: unknown element type `f64`"]);
    check(
        "state w = parameter f32[4,",
        expect!["line 1, column 24: a shape such as [2,3] is expected, found `[4,`"],
    );
    check(
        "state w = parameter f32[1,2,3,4,5]",
        expect!["line 1, column 24: `[1,2,3,4,5]` is not a shape such as [2,3]"],
    );
    check(
        "state w = parameter f32[99999999999]",
        expect!["line 1, column 24: the shape [99999999999] is too large"],
    );
    check("state w = parameter f32[2,3]/2", expect!["line 1, column 21: the pitch is below a row"]);
    check("state \"w = parameter f32[4]", expect!["line 1, column 28: the name's closing quote is missing"]);
    check(
        "state \"w\\x\" = parameter f32[4]",
        expect![[r#"line 1, column 9: `\"`, `\\` or `\u{..}` is expected, found `\x" = parameter f32[`"#]],
    );
    check(
        "state w = ema f32[]\nstate w = ema f32[]",
        expect!["line 2, column 7: state `w` is declared twice"],
    );
    check(
        "program p {\n%0 = input x f32[4]",
        expect!["line 2, column 1: the text ends where `}` is expected"],
    );
    check("program p {\n}\nprogram p {\n}", expect!["line 3, column 9: program `p` is defined twice"]);
    check(&program("%0 = state u"), expect!["line 3, column 12: no state is named `u`"]);
    check(&program("%0 = state w\n%1 = state w"), expect!["line 4, column 6: the state enters twice"]);
    check(&program("state w leaves %0"), expect!["line 3, column 15: the state did not enter the program"]);
    check(
        &program("%1 = input x f32[4]"),
        expect!["line 3, column 1: %1 is too high: 1 values are defined, 1 are missing"],
    );
    check(
        &program("%4294967296 = input x f32[4]"),
        expect!["line 3, column 1: `%4294967296` is not a value such as %3"],
    );
    check(
        &program("%0 = input x f32[4]\n%0 = input y f32[4]"),
        expect!["line 4, column 1: %0 is defined twice"],
    );
    check(
        &program("%0 = input x f32[4]\n%1 = input x f32[4]"),
        expect!["line 4, column 6: input `x` is named twice"],
    );
    check(
        &program("%0 = input x f32[4]\noutput y %1"),
        expect!["line 4, column 10: %1 is not defined above"],
    );
    let neg = |line: &str| program(&format!("%0 = input x f32[4]\n  {line}"));
    check(&neg("%1 = negate(%0) : f32[4] @ n fwd"), expect!["line 4, column 8: unknown op `negate`"]);
    check(
        &neg("%1 = unary(%0) {kind=neg : f32[4] @ n fwd"),
        expect!["line 4, column 24: `}` is expected, found `neg : f32[4] @ n fwd`"],
    );
    check(
        &neg("%1 = unary(%0) {kind=minus} : f32[4] @ n fwd"),
        expect!["line 4, column 8: attribute `kind` cannot be `minus`"],
    );
    check(
        &neg("%1 = unary(%0) {kind=neg, kind=neg} : f32[4] @ n fwd"),
        expect!["line 4, column 28: attribute `kind` is given twice"],
    );
    check(
        &neg("%1 = unary(%0) {kind=neg, a=1} : f32[4] @ n fwd"),
        expect!["line 4, column 8: unknown attribute `a`"],
    );
    check(
        &neg("%1 = unary(%0, %0) {kind=neg} : f32[4] @ n fwd"),
        expect!["line 4, column 8: unary on [f32[4], f32[4]]: takes 1 operands, got 2"],
    );
    check(
        &neg("%1 = unary(%1) {kind=neg} : f32[4] @ n fwd"),
        expect!["line 4, column 14: %1 is not defined above"],
    );
    check(
        &neg("%1 = unary(%0) {kind=neg} : f32[5] @ n fwd"),
        expect!["line 4, column 31: %1 is f32[4], as unary says, not f32[5]"],
    );
    check(
        &neg("%1, %2 = unary(%0) {kind=neg} : f32[4] @ n fwd"),
        expect!["line 4, column 12: unary has 1 results, 2 are named"],
    );
    check(
        &neg("%1 = unary(%0) {kind=neg} : f32[4] @ n forward"),
        expect!["line 4, column 42: a phase is expected, found `forward`"],
    );
    check(
        &neg("%1 = unary(%0) {kind=neg} : f32[4] @ n fwd bwd"),
        expect!["line 4, column 46: the end of the line is expected, found `bwd`"],
    );
    check(
        &neg("ключ = unary(%0)"),
        expect![
            "line 4, column 3: a value, `state`, `block`, `output`, `unused` or `}` is expected, found `ключ = unary(%0)`"
        ],
    );
}
