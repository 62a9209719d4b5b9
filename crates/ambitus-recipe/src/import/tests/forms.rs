//! YAML, JSON, flags and Python; what is not a literal; bad text.

use super::*;
use crate::recipe::{Batch, Offload};

/// One set of arguments in every form.
#[test]
fn every_form_says_the_same() {
    let python = "
# what the report has
from transformers import (TrainingArguments,
                          Trainer)
import torch
training_args = transformers.TrainingArguments(
    output_dir='out',  # comment, with a comma
    per_device_train_batch_size=4,
    gradient_accumulation_steps = 4,
    fp16=True,
    learning_rate=5.0e-5,
    max_steps=1_000,
    weight_decay=0.,
    fsdp=['full_shard', \"auto_wrap\"],
    fsdp_config={'transformer_layer_cls_to_wrap': [\"LlamaDecoderLayer\",], 'min_num_params': 0},
)
";
    let bare = "output_dir = r'out', per_device_train_batch_size=4,\n\
                gradient_accumulation_steps=4, fp16=True, learning_rate=5e-5\n\
                max_steps=1000\nweight_decay=0\nfsdp='full_' \\\n  'shard auto_wrap'\n\
                fsdp_config=dict(transformer_layer_cls_to_wrap=('LlamaDecoderLayer'), min_num_params=0)";
    let flags = "accelerate launch train.py --output_dir \"out\" --per-device-train-batch-size=4 \\\n  \
                 --gradient_accumulation_steps 4 --fp16 --learning_rate 5.0e-5 # the rate\n --max_steps 1000 \
                 --weight_decay 0 --fsdp full_shard auto_wrap \
                 --fsdp_config '{\"transformer_layer_cls_to_wrap\": [\"LlamaDecoderLayer\"], \"min_num_params\": 0}'";
    let json = "{\"output_dir\": \"out\", \"per_device_train_batch_size\": 4, \"gradient_accumulation_steps\": 4,
\t\"fp16\": true, \"learning_rate\": 5e-05, \"max_steps\": 1000, \"weight_decay\": 0.0, \"fsdp\": \"full_shard auto_wrap\",
  \"fsdp_config\": {\"transformer_layer_cls_to_wrap\": [\"LlamaDecoderLayer\"], \"min_num_params\": 0}, \"deepspeed\": null}";
    let yaml = "output_dir: out\nper_device_train_batch_size: 4\ngradient_accumulation_steps: '4'\nfp16: yes\n\
                learning_rate: 5e-5\nmax_steps: 1000\nweight_decay: 0.0\nfsdp: full_shard auto_wrap\nfsdp_config:\n  \
                fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_min_num_params: 0\n";
    let first = recipe_of(&[("a.py", python)]);
    assert_eq!(first.run_dir.as_deref(), Some(Path::new("out")));
    assert_eq!((first.batch, first.updates), (Some(Batch::Clips(16)), Some(1000)));
    assert_eq!((first.learning_rate, first.weight_decay), (Some(5e-5), Some(0.0)));
    assert_eq!(first.precision, Some(Precision::Fp16Mixed));
    let sharding = Sharding { backward_prefetch: BackwardPrefetch::None, ..Sharding::default() };
    assert_eq!(first.sharding, Some(sharding));
    for (name, text) in [
        ("a.txt", python),
        ("b.txt", bare),
        ("c.sh", flags),
        ("d.json", json),
        ("d", json),
        ("e.yaml", yaml),
        ("e", yaml),
    ] {
        assert_eq!(recipe_of(&[(name, text)]), first, "{name}: {text}");
    }
    let text = |t| if let flags::Token::Word(w) = t { Some(w.text) } else { None };
    let words = flags::tokens(flags, '\\').unwrap().into_iter().filter_map(text).collect::<Vec<_>>();
    let imported = import(&[Source::words(&words)], &Folders::default(), &[]).unwrap();
    assert_eq!(Recipe::parse(&imported.recipe, "w").unwrap().0, first);
    assert_eq!(imported.rows[0].file, "command line");
}

#[test]
fn code_is_said_and_never_guessed() {
    let text = "TrainingArguments(\n  'out',\n  num_train_epochs=epochs,\n  learning_rate=config['lr'],\n  \
                max_steps=2 * 500,\n  output_dir=os.path.join(a, \"b,)\"),\n  seed=f\"{x}\",\n  fp16=not bf16,\n  \
                per_device_train_batch_size=[n for n in (1, 2)],\n  **more,\n  bf16=True)";
    let imported = good(&[("a.py", text)]);
    for (key, value) in [
        ("num_train_epochs", "epochs"),
        ("learning_rate", "config['lr']"),
        ("max_steps", "2 * 500"),
        ("output_dir", "os.path.join(a, \"b,)\")"),
        ("seed", "f\"{x}\""),
        ("fp16", "not bf16"),
    ] {
        let row = imported.rows.iter().find(|r| r.key == key).unwrap();
        assert_eq!(row.value, value);
        assert!(row.verdict.to_string().starts_with("asks: it is code, not a literal"), "{key}");
    }
    assert!(imported.rows.iter().any(|r| r.value == "**more" && matches!(r.verdict, Verdict::Unknown(None))));
    assert!(imported.rows.iter().any(|r| r.key == "TrainingArguments(argument 1)" && r.value == "'out'"));
    assert_eq!(recipe_of(&[("a.py", text)]).precision, Some(Precision::Bf16Mixed));
}

#[test]
fn text_that_cannot_be_read_is_refused_at_its_place() {
    for (name, text, message) in [
        ("a.py", "TrainingArguments(fp16=True", "a.py:1:18: the bracket of TrainingArguments( is not closed"),
        ("a.py", "f(a='x)", "a.py:1:5: the text is not closed"),
        ("a.py", "f(a='x\n')", "a.py:1:5: the text is not closed on its line"),
        ("a.py", "x == 3", "a.py:1:1: `x` is no keyword argument"),
        ("a.py", "import os; os.remove('x')\nfp16=)", "a.py:2:6: the value is missing"),
        ("a.py", "def f(x): pass", "a.py:1:1: `def` is no keyword argument"),
        ("a.py", "a=(1]", "a.py:1:5: expected `,` or `)`"),
        ("a.sh", "--fp16 'x", "a.sh:1:8: the quote is not closed"),
        ("a.yaml", "a: [", "a.yaml:"),
        ("a.yaml", "- 1", "a.yaml: holds no keys"),
        ("a.yaml", "fp16: true\nfp16: false", "the key `fp16` is there twice"),
        ("a.json", "{\"fp16\": tru", "a.json:"),
        ("a.py", "", "a.py: holds no keys"),
        ("a", "only words", "a: holds no keys"),
        ("a.yaml", "num_processes: four", "a.yaml:1:16: num_processes: four is not a number"),
        ("a.yaml", "num_processes: 2.5", "a.yaml:1:16: num_processes: 2.5 is not a whole number"),
        ("a.yaml", "fp16: maybe", "a.yaml:1:7: fp16: maybe is not true or false"),
        ("a.yaml", "learning_rate: 1e999", "learning_rate"),
    ] {
        refused(&[(name, text)], message);
    }
    let deep = format!("a={}", "[".repeat(100_000));
    refused(&[("a.py", &deep)], "is nested deeper");
    let deep = format!("{}x{}", "A(b=".repeat(50_000), ")".repeat(50_000));
    refused(&[("a.py", &deep)], "is nested deeper");
    refused(&[("a.py", &"dict(a=".repeat(100))], "");
    refused(&[("a.py", &"k=1\n".repeat(5000))], "has more than 2000 keys");
    refused(&[("a.yaml", &"#".repeat(2 << 20))], "is larger than 1 MiB");
}

#[test]
fn offload_and_recomputing() {
    let recipe = recipe_of(&[(
        "a.yaml",
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  offload_params: 'TRUE'\n  activation_checkpointing: 1\n  \
         activation_checkpointing_offload: on\n",
    )]);
    let offload = Offload { parameters: true, gradients: true, optimizer: 1.0, ..Offload::default() };
    let found = recipe.offload.unwrap();
    assert_eq!(Offload { activations: offload.activations, ..found.clone() }, offload);
    assert_eq!(found.activations, crate::recipe::Activations::Blocks);
    assert_eq!(recipe.checkpoint.unwrap().0.to_string(), "all");
    let words = recipe_of(&[("a.py", "fsdp='full_shard offload'")]);
    assert_eq!(words.offload, Some(offload));
}

/// Any text, and any text made of what the readers know. What is said to be a default the recipe does not say otherwise.
#[test]
fn nothing_in_a_file_panics() {
    let names: Vec<&str> = keys::all().collect();
    let values = [
        "1",
        "0",
        "-1",
        "true",
        "False",
        "None",
        "null",
        "no",
        "\"x\"",
        "'full_shard auto_wrap'",
        "[1, 2]",
        "{}",
        "{'a': 1}",
        "5e-5",
        "1e400",
        "99999999999999999999",
        "FULL_SHARD",
        "2",
        "x",
        "dict(a=1)",
        "(",
        ")",
        "\\",
        "'",
        "--",
        "é",
        "\u{2028}",
        "HYBRID_SHARD",
        "FSDP",
        "MULTI_GPU",
        "3200",
        "bf16",
        "fp16",
        "frame",
        "sample",
        "$(a",
        "${a}",
        "`a`",
        "2>&1 |",
        "lambda a, b=3: a",
        "{**a, 'b': 1}",
        "{1: {2}}",
        "%A%^",
    ];
    arbtest::arbtest(|u| {
        let mut sources = Vec::new();
        for _ in 0..u.int_in_range(1..=3)? {
            let name = *u.choose(&["a.yaml", "a.py", "a.json", "a", "a.sh", "a.bat"])?;
            let mut text = String::new();
            for _ in 0..u.int_in_range(0..=12)? {
                match u.int_in_range(0..=7)? {
                    0 => text.push_str(&u.arbitrary::<String>()?),
                    1 => text.push_str(u.choose(&[
                        "TrainingArguments(",
                        "fsdp_config:\n ",
                        "fsdp_config={",
                        ")",
                        "}",
                        "# ",
                    ])?),
                    _ => {
                        let form = u.choose(&["K: V\n", "K=V,\n", "--K V ", "'K': V, ", "  K: V\n"])?;
                        let key = u.choose(&names)?.replace("fsdp.", "fsdp_").replace("parallel.", "");
                        text.push_str(&form.replace('K', &key).replace('V', u.choose(&values)?));
                    }
                }
            }
            sources.push(Source::text(name, text));
        }
        if let Ok(imported) = import(&sources, &Folders::default(), &[]) {
            let _ = imported.to_string();
            let (recipe, _) = Recipe::parse(&imported.recipe, "r").unwrap();
            for row in imported.rows.iter().filter(|r| matches!(r.verdict, Verdict::Default(_))) {
                let said = row.of.and_then(|key| lay_over::value(&recipe, key));
                assert_eq!(said, None, "{}: {}\n{}", row.key, row.verdict, imported.recipe);
            }
            assert_eq!(imported.rows.iter().filter(|r| r.line == 0).count(), 0);
        }
        Ok(())
    })
    .budget_ms(3000);
}
