//! The text form on garbage: never a panic, and what reads prints and reads back.

use crate::common::sample;
use ambitus_ir::text::{parse, print_session};
use arbtest::arbitrary::Unstructured;

/// Parts of a text replaced, removed, doubled, or mixed with words of the language: whatever comes of it is refused, or
/// prints and reads back.
#[test]
fn mutated_texts_never_panic() {
    const WORDS: [&str; 16] = [
        "state ",
        "input",
        "%0",
        "%18446744073709551615",
        "{",
        "}",
        "f32[2147483648,65536]",
        "[0]",
        "99999999999999999999",
        "\"",
        "\\u{110000}",
        "é",
        "=",
        "(",
        "head_dim=0",
        "leaves",
    ];
    let text = print_session(&sample());
    let mutate = |u: &mut Unstructured<'_>| {
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..u.int_in_range(1..=6)? {
            let at = u.choose_index(chars.len())?;
            let to = (at + u.int_in_range(0..=12)?).min(chars.len());
            match u.int_in_range(0..=4)? {
                0 => chars[at] = u.arbitrary()?,
                1 => drop(chars.drain(at..to)),
                2 => drop(chars.splice(at..to, u.choose(&WORDS)?.chars())),
                3 => {
                    let part = chars[at..to].to_vec();
                    drop(chars.splice(at..at, part));
                }
                // A digit becomes another: shapes, attributes and values that almost fit.
                _ => {
                    let digit = (at..chars.len()).find(|i| chars[*i].is_ascii_digit());
                    chars[digit.unwrap_or(at)] = *u.choose(&['0', '1', '3', '7', '9'])?;
                }
            }
        }
        let mutated: String = chars.into_iter().collect();
        if let Ok(session) = parse(&mutated) {
            let again = parse(&print_session(&session));
            assert_eq!(again.as_ref(), Ok(&session), "{mutated}");
        }
        Ok(())
    };
    arbtest::arbtest(mutate).size_min(128).size_max(512).budget_ms(1_000);
}

/// Every op on operands and attributes of any kind: shape rules refuse or accept, and never panic.
#[test]
fn any_op_on_any_operands_never_panics() {
    const TYPES: [&str; 12] = [
        "f32[]",
        "f32[0]",
        "f32[1]",
        "i32[3]",
        "i32[1,2]",
        "f32[4,6]",
        "f32[6,4]",
        "f32[4,3,2]",
        "bf16[4,6]",
        "u8[1]",
        "f32[2147483648,65536]",
        "f32[2,3,4,5]",
    ];
    const NUMBERS: [&str; 6] = ["0", "1", "2", "3", "4", "2147483648"];
    const SPANS: [&str; 5] = ["whole", "0+1/1", "1024+4/2048", "0+0/0", "1+281474976710655/281474976710656"];
    const SHAPES: [&str; 6] = ["[]", "[0]", "[1,0]", "[4,6]", "[2,1,0]", "[2147483648,65536]"];
    let names = ambitus_ir::Op::NAMES;
    let attrs: Vec<Vec<(String, String)>> = names.iter().map(|n| readable_attributes(n)).collect();
    let any = |u: &mut Unstructured<'_>| {
        let at = u.choose_index(names.len())?;
        let mut text = String::from("program p {\n");
        for (i, ty) in TYPES.iter().enumerate() {
            text.push_str(&format!("%{i} = input x{i} {ty}\n"));
        }
        let mut operands = Vec::new();
        for _ in 0..u.int_in_range(0..=8)? {
            operands.push(format!("%{}", u.choose_index(TYPES.len())?));
        }
        let mut given = Vec::new();
        for (name, value) in &attrs[at] {
            let value = match value.as_str() {
                "1" => u.choose(&NUMBERS)?,
                "[1]" => u.choose(&SHAPES)?,
                "true" => u.choose(&["true", "false"])?,
                "0+1/1" => u.choose(&SPANS)?,
                word => word,
            };
            given.push(format!("{name}={value}"));
        }
        let given = if given.is_empty() { String::new() } else { format!("{{{}}}", given.join(", ")) };
        text.push_str(&format!("%12 = {}({}) {given} : f32[1] @ p fwd\n}}", names[at], operands.join(", ")));
        if let Err(error) = parse(&text) {
            assert!(!error.message.contains("attribute"), "{error}\n{text}");
        }
        Ok(())
    };
    arbtest::arbtest(any).size_min(128).size_max(256).budget_ms(1_000);
}

/// Attributes with which an op reads, found from what its reader says is missing or unreadable.
fn readable_attributes(name: &str) -> Vec<(String, String)> {
    const VALUES: [&str; 16] = [
        "1",
        "true",
        "[1]",
        "f32",
        "neg",
        "add",
        "sum",
        "gelu_erf",
        "device",
        "sin_cos",
        "shard",
        "2/1",
        "[0[1],256[2,3,4]]",
        "send",
        "0>1/2",
        "0+1/1",
    ];
    let mut found: Vec<(String, usize)> = Vec::new();
    loop {
        let attrs = found.iter().map(|(n, v)| (n.clone(), VALUES[*v].to_owned())).collect();
        let Err(why) = ambitus_ir::Op::read(name, attrs) else {
            break;
        };
        let attr = why.split('`').nth(1).expect("the attribute is named");
        match found.iter_mut().find(|(n, _)| n == attr) {
            Some((_, value)) => *value += 1,
            None => found.push((attr.to_owned(), 0)),
        }
    }
    found.into_iter().map(|(n, v)| (n, VALUES[v].to_owned())).collect()
}
