//! Python as people paste it: texts over several lines, variables, types, and what is code of one argument only.

use super::*;

/// Returns the value of a key as it was read.
#[track_caller]
fn value(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key} in {imported}")).value.clone()
}

#[test]
fn neighbouring_texts_in_brackets_are_one() {
    let grad_op = |text: &str| {
        let recipe = recipe_of(&[("a.py", text)]);
        assert_eq!(recipe.sharding.unwrap().strategy, Strategy::GradOp, "{text}");
        assert_eq!(recipe.precision, Some(Precision::Bf16Mixed), "{text}");
    };
    for fsdp in [
        "(\"shard_grad_op \"\n         \"auto_wrap\")",
        "\"shard_grad_op \"  # a word\n         \"auto_wrap\"",
        "\"\"\"shard_grad_op\nauto_wrap\"\"\"",
        "[\"shard_grad_op auto_wrap\"]",
        "[\"shard_grad_op\",\n \"auto_wrap\"]",
        "'shard_grad_op,auto_wrap'",
    ] {
        grad_op(&format!("TrainingArguments(\n    fsdp={fsdp},\n    bf16=True,\n)"));
    }
    // Outside of brackets a line's end ends the text.
    let two = good(&[("a.py", "output_dir='a'\nbf16=True")]);
    assert_eq!((value(&two, "output_dir"), value(&two, "bf16")), ("a".to_owned(), "true".to_owned()));
}

#[test]
fn variables_and_types() {
    let expected = recipe_of(&[("a.py", "TrainingArguments(bf16=True, max_steps=7, fsdp='full_shard')")]);
    for text in [
        "args = {\n  'bf16': True,\n  'max_steps': 7,\n  'fsdp': 'full_shard',\n}",
        "args = dict(bf16=True,\n            max_steps=7, fsdp='full_shard')\ntrainer = Trainer(model)",
        "args: TrainingArguments = TrainingArguments(bf16=True, max_steps=7, fsdp='full_shard')",
        "args: \"dict[str, object]\" = {'bf16': True, 'max_steps': 7, 'fsdp': 'full_shard'}",
        "bf16: bool = True\nmax_steps: int = 7\nfsdp: Optional[Union[str, list]] = 'full_shard'",
    ] {
        for name in ["a.py", "a.txt"] {
            assert_eq!(recipe_of(&[(name, text)]), expected, "{name}: {text}");
        }
    }
    // A section's name is kept.
    let imported =
        good(&[("a.py", "fsdp='full_shard'\nfsdp_config = {'backward_prefetch': 'backward_pre'}")]);
    assert_eq!(said(&imported, "fsdp_config.backward_prefetch"), "used: sharding.backward_prefetch: pre");
    refused(&[("a.py", "x: int\n")], "a.py:1:1: `x` is no keyword argument");
}

#[test]
fn code_is_of_its_own_argument_only() {
    for code in [
        "{**base, 'min_num_params': 1}",
        "{k: v for k, v in pairs}",
        "{1, 2}",
        "{'a', 'b'}",
        "{1: 2}",
        "{'a': {1: dict(b=2)}}[0]",
        "lambda a, b=3: a",
        "lambda a, *b, c={'d': 1}: (a, lambda e, f: e)",
    ] {
        let text = format!("TrainingArguments(\n  fsdp_config={code},\n  bf16=True)");
        let imported = good(&[("a.py", &text)]);
        assert_eq!(imported.rows.len(), 2, "{text}: {imported}");
        assert_eq!(value(&imported, "fsdp_config"), code);
        assert!(said(&imported, "fsdp_config").starts_with("asks: it is code"), "{text}: {imported}");
        assert_eq!(recipe_of(&[("a.py", &text)]).precision, Some(Precision::Bf16Mixed));
    }
    refused(&[("a.py", "a={'b': 1")], "a.py:1:10: expected `,` or `}`");
    refused(&[("a.py", "f(a=lambda b)")], "expected `:`");
}
