use super::*;
use crate::recipe::testing::defaults;
use crate::recipe::{
    Batch, Checkpoint, Length, MicroBatch, Outside, Precision, Sample, UpdateAt, Validation,
};
use crate::size::ByteSize;
use ambitus_compile::passes::policy::Blocks;

const SMALLEST: &str = "model: {dir: a}\ndata: {dir: b}\n";

const FULL: &str = "
model:
  dir: models/base
  from_scratch: true
data:
  dir: voice
  min_seconds: 1
  max_seconds: 12.5
  outside: cut
  validation: [a/one, 'two: 2', ü]
  cache: cache
memory: 1.5GiB
precision: bf16-mixed
checkpoint: 3
micro_batch: {frames: 768, clips: 4}
batch: {seconds: 60}
epochs: 2.5
learning_rate: 7.5e-5
warmup: 10
weight_decay: 0
no_decay: [norm, '*.bias']
betas: [0.8, 0.99]
eps: 1e-6
clip: 2
clip_per_tensor: true
update: backward
dropout: 0.05
ema: false
validate_every: 0
save_every: 25
keep: 1
seed: 18446744073709551615
threads: 2
run_dir: runs/x
sample: {clip: 'no', steps: 8, cfg: 0}
";

fn why(text: &str) -> String {
    Recipe::parse(text, "r.yaml").expect_err(text).to_string()
}

#[test]
fn absent_keys_are_the_documented_defaults() {
    let (recipe, origins) = Recipe::parse(SMALLEST, "r.yaml").unwrap();
    assert_eq!(recipe, Recipe::new("a", "b"));
    assert_eq!(recipe.length(), Length::Updates(1000));
    assert_eq!(origins.of("data.dir"), "r.yaml:2:13");
    assert_eq!(origins.places().find(|(key, _)| *key == "seed"), None);
}

#[test]
fn every_key_is_read() {
    let (recipe, _) = Recipe::parse(FULL, "r.yaml").unwrap();
    assert_eq!(recipe.data.outside, Outside::Cut);
    assert_eq!(recipe.data.validation, Validation::Names(vec!["a/one".into(), "two: 2".into(), "ü".into()]));
    assert_eq!(recipe.memory, Some(ByteSize(3 << 29)));
    assert_eq!(recipe.precision, Some(Precision::Bf16Mixed));
    assert_eq!(recipe.checkpoint, Some(Checkpoint(Blocks::First(3))));
    assert_eq!(recipe.micro_batch, MicroBatch { frames: Some(768), clips: Some(4), ..MicroBatch::default() });
    assert_eq!(recipe.batch, Some(Batch::Seconds(60.0)));
    assert_eq!((recipe.update, recipe.clip_per_tensor), (UpdateAt::Backward, true));
    assert_eq!(recipe.no_decay, Some(vec!["norm".to_owned(), "*.bias".to_owned()]));
    assert_eq!(recipe.length(), Length::Epochs(2.5));
    assert_eq!((recipe.seed, recipe.threads, recipe.ema), (u64::MAX, Some(2), Some(false.into())));
    assert_eq!(recipe.sample, Some(Sample { clip: Some("no".into()), steps: 8, cfg: 0.0 }));
}

#[test]
fn other_forms_are_read() {
    let read = |more: &str| Recipe::parse(&format!("{SMALLEST}{more}\n"), "r.yaml").unwrap().0;
    let frames = |n: u64| MicroBatch { frames: Some(n), ..MicroBatch::default() };
    assert_eq!(read("micro_batch: 768").micro_batch, frames(768));
    assert_eq!(read("micro_batch: {seconds: 8}").micro_batch.seconds, Some(8.0));
    assert_eq!(read("micro_batch: {tokens: 768}").micro_batch, frames(768));
    assert!(read("micro_batch: max").micro_batch.max);
    assert_eq!(read("checkpoint: all").checkpoint, Some(Checkpoint(Blocks::All)));
    let cheapest = Blocks::Cheapest { values: 2, blocks: 5 };
    assert_eq!(read("checkpoint: values:2+5").checkpoint, Some(Checkpoint(cheapest)));
    assert_eq!(read("sample: false").sample, None);
    let sound = |more: &str| {
        let text = format!("model: {{dir: a}}\ndata: {{dir: b, {more}}}");
        let data = Recipe::parse(&text, "r.yaml").unwrap().0.data;
        (data.loudness, data.trim)
    };
    assert_eq!(sound("loudness: -23, trim: true"), (Some(-23.0), Some(0.1)));
    assert_eq!(sound("trim: 0.25"), (None, Some(0.25)));
    assert_eq!(sound("loudness: -16.5, trim: 0"), (Some(-16.5), Some(0.0)));
    assert_eq!(sound("trim: false"), (None, None));
    assert_eq!(read("batch: {frames: 9}").batch, Some(Batch::Frames(9)));
    assert_eq!(read("batch: {tokens: 9}").batch, Some(Batch::Frames(9)));
    let share = Recipe::parse("model: {dir: a}\ndata: {dir: b, validation: {share: 0}}", "r.yaml").unwrap().0;
    assert_eq!(share.data.validation, Validation::Share(0.0));
    let of = |said: &str| {
        Recipe::parse(&format!("model: {{dir: a}}\ndata: {{dir: b, validation: {said}}}"), "r.yaml")
            .map(|r| r.0)
    };
    let file = of("{file: metadata_eval.csv}").unwrap();
    assert_eq!(file.data.validation, Validation::File("metadata_eval.csv".into()));
    for (said, why) in [("{file: a, share: 0.1}", "say one"), ("{file: ''}", "is empty")] {
        let error = of(said).unwrap_err().to_string();
        assert!(error.contains("data.validation") && error.contains(why), "{error}");
    }
}

#[test]
fn what_is_written_reads_back_the_same() {
    for text in
        [SMALLEST, FULL, &format!("{SMALLEST}checkpoint: all\nsample: false\nmicro_batch: 5\nupdates: 7")]
    {
        let (recipe, _) = Recipe::parse(text, "r.yaml").unwrap();
        let written = recipe.to_yaml().unwrap();
        assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
    }
    arbtest::arbtest(|u| {
        let mut recipe = Recipe::new("m", "d");
        let rate = f64::from(u.int_in_range(1..=u32::MAX)?) / f64::from(u32::MAX);
        recipe.learning_rate = Some(rate);
        recipe.eps = Some(rate * 1e-12);
        recipe.memory = Some(ByteSize(u.int_in_range(1..=u64::MAX)?));
        recipe.data.validation =
            Validation::Names(vec![u.arbitrary()?, "null".into(), "1e5".into(), " x ".into()]);
        recipe.model.dir = u.arbitrary::<String>()?.into();
        if recipe.validate().is_ok() {
            let written = recipe.to_yaml().unwrap();
            assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
        }
        Ok(())
    });
}

#[test]
fn errors_name_file_line_column_and_key() {
    for (more, message) in [
        (
            "learning_rat: 1",
            "r.yaml:3:1: learning_rat: unknown key `learning_rat` (did you mean `learning_rate`?); known here: model, data",
        ),
        ("learning_rate: .nan", "r.yaml:3:16: learning_rate: NaN is not above 0"),
        ("learning_rate: .inf", "r.yaml:3:16: learning_rate: inf is not above 0"),
        ("learning_rate: -1e-5", "r.yaml:3:16: learning_rate: -0.00001 is not above 0"),
        ("learning_rate: 1e999", "r.yaml:3:16: learning_rate: expected a number"),
        ("update: backward", "r.yaml:3:9: update: backward applies each gradient before the others exist"),
        ("update: early", "r.yaml:3:9: update: `early` is not one of end, backward"),
        ("updates: -5", "r.yaml:3:10: updates: expected a whole number, 0 or more"),
        ("updates: 0", "r.yaml:3:10: updates: 0 is not between 1"),
        ("updates: 1\nepochs: 2", "r.yaml:4:9: epochs: cannot be combined with `updates`"),
        ("memory: 20", "r.yaml:3:9: memory: `20` has no unit: write 20GiB"),
        ("memory: [1]", "memory: expected a size with a unit"),
        (
            "checkpoint: some",
            "checkpoint: expected none, all, a number of blocks, values:N, or names of modules as '*.to_q,*.ff.ff.2', found string \"some\"",
        ),
        ("checkpoint: -1", "checkpoint: expected none, all"),
        ("micro_batch: 0", "r.yaml:3:14: micro_batch.frames: 0 is not between"),
        (
            "micro_batch: {frame: 1}",
            "r.yaml:3:15: micro_batch.frame: unknown key `frame` (did you mean `frames`?); known here: frames, tokens, seconds, clips",
        ),
        ("batch: {clips: 4, frames: 3}", "r.yaml:3:19: batch.frames: give only one of these keys"),
        ("batch: {seconds: .nan}", "batch.seconds: NaN is not a number of seconds above 0"),
        ("ema: yes", "r.yaml:3:1: ema: expected true, false, or {decay: 0.99, every: 10}"),
        ("ema: {decay: 1, every: 1}", "r.yaml:3:14: ema.decay: 1 is not from 0 to below 1"),
        ("ema: {decay: 0.9, every: 0}", "ema.every: 0 is not between 1"),
        ("ema: {decay: 0.9}", "every"),
        ("seed: 1\nseed: 2", "r.yaml:4:1: the key `seed` is there twice"),
        ("seed: 1\n<<: {seed: 2}", "merge keys (<<) are not read"),
        ("betas: [0.5]", "betas: invalid length 1"),
        ("betas: [0.9, 1]", "betas: 1 is not from 0 to below 1"),
        ("sample: {cfg: -1}", "r.yaml:3:15: sample.cfg: -1 is not from 0 to 100"),
        ("---\nmodel: {dir: a}", "several documents"),
        ("run_dir: ''", "run_dir: is empty"),
    ] {
        let got = why(&format!("{SMALLEST}{more}\n"));
        assert!(got.contains(message), "{more}: {got}");
    }
    assert!(why("model: {dir: a}").contains("r.yaml:1:1: the key `data` is missing"));
    assert!(why("model: {dir: a}\ndata: {}").contains("r.yaml:2:7: data: the key `dir` is missing"));
    assert!(why("").contains("model.dir and data.dir are needed"));
    assert!(why("model: {dir: a}\ndata: {dir: b, validation: []}").contains("data.validation: is empty"));
}

#[test]
fn what_is_trained_is_read_and_checked() {
    let read = |more: &str| Recipe::parse(&format!("{SMALLEST}{more}\n"), "r.yaml").unwrap().0;
    let lora = |more: &str| read(more).lora.expect("adapters");
    assert_eq!(lora("lora: {}"), crate::recipe::Lora::default());
    let adapters = lora("lora: {rank: 8, rslora: true}").adapters();
    assert_eq!((adapters.rank, adapters.alpha, adapters.scale()), (8, 8.0, 8.0 / 8f64.sqrt()));
    assert!(adapters.targets.is_empty(), "the family's own");
    let lines =
        "lora: {rank: 4, alpha: 6, dropout: 0.1, targets: ['*.to_q'], also_train: [transformer.text_embed]}";
    assert_eq!(lora(lines).adapters().scale(), 1.5);
    for lines in [lines, "freeze: ['*.attn', transformer.text_embed]", "lora: {}"] {
        let recipe = read(lines);
        let written = recipe.to_yaml().unwrap();
        assert_eq!(Recipe::parse(&written, "w.yaml").expect(&written).0, recipe, "{written}");
    }
    for (more, message) in [
        ("lora: {rank: 0}", "r.yaml:3:14: lora.rank: 0 is not between 1 and 65536"),
        ("lora: {alpha: 0}", "r.yaml:3:15: lora.alpha: 0 is not above 0"),
        ("lora: {dropout: 1}", "lora.dropout: 1 is not a probability"),
        ("lora: {targets: []}", "lora.targets: is empty"),
        ("lora: {targets: ['']}", "lora.targets: holds an empty pattern"),
        ("lora: {rnak: 3}", "unknown key `rnak` (did you mean `rank`?); known here: rank, alpha"),
        ("freeze: [' ']", "r.yaml:3:9: freeze: holds an empty pattern"),
        ("no_decay: ['']", "r.yaml:3:11: no_decay: holds an empty pattern"),
        ("freeze: ['*.attn']\nlora: {}", "r.yaml:3:9: freeze: cannot be combined with `lora`"),
    ] {
        let said = why(&format!("{SMALLEST}{more}\n"));
        assert!(said.contains(message), "{more}: {said}");
    }
}

#[test]
fn bombs_are_refused() {
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in b'b'..=b'j' {
        let (here, before) = (i as char, (i - 1) as char);
        laughs += &format!("{here}: &{here} [{}]\n", format!("*{before}, ").repeat(9));
    }
    let deep = "[".repeat(100_000);
    let nested = (0..3000).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>();
    let wide = format!("{SMALLEST}x: [{}]", "1,".repeat(200_000));
    let documents = "--- a\n".repeat(100_000);
    for bomb in [&laughs, &deep, &nested, &wide, &documents] {
        let error = why(bomb);
        assert!(error.len() < 1000, "{error}");
    }
    let long = why(&format!("{SMALLEST}seed: {}", "x".repeat(1 << 19)));
    assert!(long.len() < 1000);
}

#[test]
fn precision_is_read_and_a_scaled_loss_needs_whole_updates() {
    let with = |more: &str| Recipe::parse(&format!("{SMALLEST}\n{more}"), "r.yaml").map(|r| r.0);
    let message = |more: &str| with(more).unwrap_err().to_string();
    let (none, bf16) = (with("").unwrap(), with("precision: bf16-mixed").unwrap());
    assert_eq!((none.precision, bf16.precision), (None, Some(Precision::Bf16Mixed)));
    assert!(!none.to_yaml().unwrap().contains("precision"));
    assert!(bf16.to_yaml().unwrap().contains("precision: bf16-mixed"));
    let known = "`half` is not fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure";
    assert!(message("precision: half").contains(known));
    let backward = "update: backward\nclip_per_tensor: true";
    assert!(with(&format!("precision: bf16-mixed\n{backward}")).is_ok());
    for more in [backward, "clip_per_tensor: true"] {
        let why = message(&format!("precision: fp16-mixed\n{more}"));
        assert!(why.contains("precision: bf16-mixed (--precision bf16-mixed)"), "{why}");
    }
}

#[test]
fn mutated_text_never_panics() {
    arbtest::arbtest(|u| {
        let mut bytes = FULL.as_bytes().to_vec();
        for _ in 0..u.int_in_range(1..=8)? {
            let at = u.choose_index(bytes.len())?;
            match u.int_in_range(0..=3)? {
                0 => bytes[at] = *u.choose(b"{}[]:,-&*!|>'\"%@`#\n\t ?~<=.0e")?,
                1 => bytes[at] = u.arbitrary()?,
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, *u.choose(b"{}[]:,-&*!|>'\"%@`#\n\t ?~<=.0e")?),
            }
        }
        if let Ok((recipe, _)) = Recipe::parse(&String::from_utf8_lossy(&bytes), "fuzz.yaml") {
            recipe.validate().unwrap();
        }
        Ok(())
    });
}

#[test]
fn files_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Recipe::read(&path, &[]).map_err(|e| e.to_string())
    };
    assert!(read("a.yaml", SMALLEST.as_bytes()).is_ok());
    assert!(read("crlf.yaml", SMALLEST.replace('\n', "\r\n").as_bytes()).is_ok());
    assert!(read("bom.yaml", format!("\u{feff}{SMALLEST}").as_bytes()).is_ok());
    assert!(read("b.yaml", b"model: x\n\xff").unwrap_err().contains("b.yaml: line 2 is not UTF-8"));
    assert!(
        read("c.yaml", &vec![b'#'; 1 + MAX_RECIPE_BYTES as usize]).unwrap_err().contains("larger than 1 MiB")
    );
    assert!(Recipe::read(folder.path(), &[]).unwrap_err().to_string().contains("not a file"));
    assert!(Recipe::read(&folder.path().join("none.yaml"), &[]).is_err());
}

#[test]
fn a_stage_is_the_recipe_with_its_own_keys_over_it() {
    let text = format!(
        "{SMALLEST}updates: 9\nwarmup: 3\nstages:\n  - {{name: a, freeze: ['*.x'], epochs: 2, batch: {{clips: 3}}}}\n  \
         - {{lora: {{rank: 2}}, learning_rate: 1e-4, optimizer: adamw-8bit, precision: bf16-mixed, checkpoint: 2}}\n"
    );
    let (recipe, origins) = Recipe::parse(&text, "r.yaml").unwrap();
    assert_eq!(Recipe::parse(&recipe.to_yaml().unwrap(), "w.yaml").unwrap().0, recipe);
    assert!(origins.of("stages.1.learning_rate").starts_with("r.yaml:7:"));
    assert_eq!([0, 1].map(|i| recipe.stage_name(i)), ["a", "stage-2"]);
    let (a, b) = (recipe.stage(0), recipe.stage(1));
    let own = Recipe::new("a", "b");
    let mut expected =
        Recipe { epochs: Some(2.0), warmup: Some(3), batch: Some(Batch::Clips(3)), ..own.clone() };
    expected.freeze = vec!["*.x".into()];
    assert_eq!(a, expected);
    assert_eq!((b.updates, b.warmup, b.learning_rate, b.batch), (Some(9), Some(3), Some(1e-4), own.batch));
    assert_eq!((b.precision, b.checkpoint), (Some(Precision::Bf16Mixed), Some(Checkpoint(Blocks::First(2)))));
    assert_eq!(recipe.stage_that_says(&["updates", "epochs"]).as_deref(), Some("a"));
    assert_eq!(recipe.stage_that_says(&["dropout"]), None);
}

#[test]
fn absent_keys_mean_what_the_family_means() {
    let defaults = defaults();
    let settled = |more: &str| {
        let recipe = Recipe::parse(&format!("{SMALLEST}{more}\n"), "r.yaml").unwrap().0;
        recipe.settled(&defaults).recipe().clone()
    };
    let r = settled("lora: {}");
    assert_eq!((r.learning_rate, r.weight_decay, r.ema), (Some(1e-4), Some(0.01), Some(true.into())));
    assert_eq!(
        (r.batch, r.lora.unwrap().targets.unwrap()),
        (Some(Batch::Clips(8)), defaults.adapted.clone())
    );
    assert_eq!((r.sample, r.betas, r.eps, r.clip), (None, Some([0.9, 0.999]), Some(1e-8), Some(1.0)));
    assert_eq!((r.schedule, r.no_decay), (Some(defaults.schedule.clone()), Some(defaults.no_decay.clone())));
    // Without adapters the original project's.
    assert_eq!(settled("").learning_rate, Some(1e-5));
    // What is said stays.
    let said = "learning_rate: 2e-4\nweight_decay: 0.1\nema: false\nwarmup: 5\nbatch: {tokens: 9}";
    let r = settled(said);
    assert_eq!((r.learning_rate, r.weight_decay, r.ema), (Some(2e-4), Some(0.1), Some(false.into())));
    assert_eq!((r.warmup, r.batch), (Some(5), Some(Batch::Frames(9))));
    // None at all, too; and so it is written.
    let none = settled("no_decay: []");
    assert!(none.no_decay == Some(Vec::new()) && none.to_yaml().unwrap().contains("no_decay: []"));
    // Seconds are the model's rows.
    let frames = settled("micro_batch: {seconds: 8}").micro_batch;
    assert_eq!(frames, MicroBatch { frames: Some(750), ..MicroBatch::default() });
}

#[test]
fn warm_up_follows_from_the_length_where_nobody_says_it() {
    let settled = |warmup| Recipe { warmup, ..Recipe::new("a", "b") }.settled(&defaults());
    assert_eq!([0, 60, 100_000].map(|updates| settled(None).settle_warmup(updates)), [0, 3, 100]);
    assert_eq!(settled(Some(7)).settle_warmup(60), 7);
}
