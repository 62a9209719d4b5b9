//! The published settings of v0.1, v1 Mini, v1 Large and the fine-tuning notebook; every key of the script; what it leaves out.

use super::*;
use ambitus_recipe::import::{Folders, Imported, Source, Verdict, import};
use ambitus_recipe::recipe::{Batch, Recipe};
use std::path::Path;

#[track_caller]
fn read(name: &str, text: &str) -> Imported {
    import(&[Source::text(name, text)], &Folders::default(), &[&TRAINER])
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[track_caller]
fn said(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key}")).verdict.to_string()
}

#[track_caller]
fn recipe(imported: &Imported) -> Recipe {
    Recipe::parse(&imported.recipe, "r.yaml").unwrap_or_else(|e| panic!("{}\n{e}", imported.recipe)).0
}

fn notes(imported: &Imported, part: &str) -> usize {
    imported.notes.iter().filter(|n| n.contains(part)).count()
}

/// What the three published JSON files have in common.
const COMMON: &str = r#"
    "save_to_disk": "./tmp_dataset_audio/",
    "temporary_save_to_disk": "./audio_code_tmp/",
    "feature_extractor_name": "ylacombe/dac_44khZ_8kbps",
    "report_to": ["wandb"],
    "overwrite_output_dir": true,
    "output_dir": "./output_dir_training",
    "train_dataset_config_name": "clean+clean+other+default",
    "train_split_name": "train.clean.360+train.clean.100+train.other.500+train",
    "eval_dataset_config_name": "other+default",
    "eval_split_name": "test.other+test",
    "target_audio_column_name": "audio",
    "description_column_name": "text_description",
    "prompt_column_name": "text",
    "max_eval_samples": 96,
    "max_duration_in_seconds": 30,
    "min_duration_in_seconds": 2.0,
    "group_by_length": true,
    "add_audio_samples_to_wandb": true,
    "id_column_name": "id",
    "preprocessing_num_workers": 8,
    "do_train": true,
    "gradient_checkpointing": false,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "weight_decay": 0.01,
    "lr_scheduler_type": "constant_with_warmup",
    "logging_steps": 1000,
    "freeze_text_encoder": true,
    "do_eval": true,
    "predict_with_generate": true,
    "include_inputs_for_metrics": true,
    "evaluation_strategy": "steps",
    "eval_steps": 10000,
    "save_steps": 10000,
    "dtype": "bfloat16",
    "dataloader_num_workers": 8"#;

/// What v0.1 has besides.
const V0_1: &str = r#"
    "model_name_or_path": "./parler-tts-untrained-600M/parler-tts-untrained-600M/",
    "description_tokenizer_name": "google/flan-t5-base",
    "prompt_tokenizer_name": "google/flan-t5-base",
    "train_dataset_name": "blabble-io/libritts_r+blabble-io/libritts_r+blabble-io/libritts_r+parler-tts/mls_eng_10k",
    "train_metadata_dataset_name": "parler-tts/libritts_r_tags+parler-tts/libritts_r_tags+parler-tts/libritts_r_tags+parler-tts/mls_tags",
    "eval_dataset_name": "blabble-io/libritts_r+parler-tts/mls_eng_10k",
    "eval_metadata_dataset_name": "parler-tts/libritts_r_tags+parler-tts/mls_tags",
    "max_text_length": 400,
    "num_train_epochs": 40,
    "gradient_accumulation_steps": 8,
    "per_device_train_batch_size": 3,
    "learning_rate": 0.00095,
    "warmup_steps": 20000,
    "per_device_eval_batch_size": 12,
    "audio_encoder_per_device_batch_size": 20,
    "seed": 456"#;

/// What both of v1 have besides.
const V1: &str = r#"
    "wandb_project": "parler-tts-50k-hours",
    "description_tokenizer_name": "google/flan-t5-large",
    "prompt_tokenizer_name": "google/flan-t5-large",
    "train_dataset_name": "ylacombe/libritts_r_filtered+ylacombe/libritts_r_filtered+ylacombe/libritts_r_filtered+parler-tts/mls_eng",
    "train_metadata_dataset_name": "ylacombe/libritts-v5+ylacombe/libritts-v5+ylacombe/libritts-v5+ylacombe/mls-v4",
    "eval_dataset_name": "ylacombe/libritts_r_filtered+parler-tts/mls_eng",
    "eval_metadata_dataset_name": "ylacombe/libritts-v5+ylacombe/mls-v4",
    "max_text_length": 600,
    "num_train_epochs": 4,
    "gradient_accumulation_steps": 4,
    "audio_encoder_per_device_batch_size": 24,
    "attn_implementation": "sdpa""#;

const MINI: &str = r#"
    "model_name_or_path": "./parler-tts-untrained-600M/parler-tts-untrained-600M/",
    "wandb_run_name": "Mini",
    "per_device_train_batch_size": 6,
    "learning_rate": 0.00095,
    "warmup_steps": 20000,
    "per_device_eval_batch_size": 4,
    "seed": 456"#;

const LARGE: &str = r#"
    "model_name_or_path": "./parler-tts-untrained-large/parler-tts-untrained-large",
    "wandb_run_name": "Large",
    "per_device_train_batch_size": 3,
    "learning_rate": 0.0015,
    "warmup_steps": 10000,
    "save_total_limit": 10,
    "per_device_eval_batch_size": 6,
    "seed": 738"#;

fn file(parts: &[&str]) -> String {
    format!("{{{}\n}}\n", parts.join(","))
}

/// The notebook that fine-tunes v1 Mini on one voice.
const NOTEBOOK: &str = r#"!accelerate launch ./training/run_parler_tts_training.py \
    --model_name_or_path "parler-tts/parler-tts-mini-v1" \
    --feature_extractor_name "parler-tts/dac_44khZ_8kbps" \
    --description_tokenizer_name "parler-tts/parler-tts-mini-v1" \
    --prompt_tokenizer_name "parler-tts/parler-tts-mini-v1" \
    --report_to "wandb" \
    --overwrite_output_dir true \
    --train_dataset_name "ylacombe/jenny-tts-6h" \
    --train_metadata_dataset_name "ylacombe/jenny-tts-6h-tagged" \
    --train_dataset_config_name "default" \
    --train_split_name "train" \
    --eval_dataset_name "ylacombe/jenny-tts-6h" \
    --eval_metadata_dataset_name "ylacombe/jenny-tts-6h-tagged" \
    --eval_dataset_config_name "default" \
    --eval_split_name "train" \
    --max_eval_samples 8 \
    --per_device_eval_batch_size 8 \
    --target_audio_column_name "audio" \
    --description_column_name "text_description" \
    --prompt_column_name "text" \
    --max_duration_in_seconds 20 \
    --min_duration_in_seconds 2.0 \
    --max_text_length 400 \
    --preprocessing_num_workers 2 \
    --do_train true \
    --num_train_epochs 2 \
    --gradient_accumulation_steps 18 \
    --gradient_checkpointing true \
    --per_device_train_batch_size 2 \
    --learning_rate 0.0001 \
    --adam_beta1 0.9 \
    --adam_beta2 0.99 \
    --weight_decay 0.01 \
    --lr_scheduler_type "constant_with_warmup" \
    --warmup_steps 50 \
    --logging_steps 2 \
    --freeze_text_encoder true \
    --audio_encoder_per_device_batch_size 5 \
    --dtype "float16" \
    --seed 456 \
    --output_dir "./output_dir_training/" \
    --temporary_save_to_disk "./audio_code_tmp/" \
    --save_to_disk "./tmp_dataset_audio/" \
    --dataloader_num_workers 2 \
    --do_eval \
    --predict_with_generate \
    --include_inputs_for_metrics \
    --group_by_length true
"#;

/// Numbers of a recipe: clips, epochs, rate, warm-up, precision, seconds and seed.
type Numbers = (Option<Batch>, Option<f64>, Option<f64>, Option<u64>, Option<Precision>, (f64, f64), u64);

/// Checks what all published settings have in common.
#[track_caller]
fn published(imported: &Imported, numbers: Numbers) -> Recipe {
    let unknown = |r: &&ambitus_recipe::import::Row| matches!(r.verdict, Verdict::Unknown(_));
    assert_eq!(imported.rows.iter().filter(unknown).count(), 0, "{imported}");
    let r = recipe(imported);
    let seconds = (r.data.min_seconds, r.data.max_seconds);
    assert_eq!((r.batch, r.epochs, r.learning_rate, r.warmup, r.precision, seconds, r.seed), numbers);
    assert_eq!((r.betas, r.eps, r.weight_decay, r.clip), (Some([0.9, 0.99]), None, Some(0.01), None));
    assert_eq!(r.schedule.as_ref().map(ToString::to_string).as_deref(), Some("constant"));
    assert_eq!(
        r.run_dir.as_deref().map(Path::to_string_lossy).unwrap().trim_end_matches('/'),
        "./output_dir_training"
    );
    assert_eq!((r.updates, r.ranks, &r.optimizer), (None, None, &None));
    // Its decay is on every parameter, as here.
    assert_eq!((notes(imported, "weight decay"), notes(imported, "`parler: {normaliser: script}`")), (0, 1));
    assert!(
        imported.recipe.contains("# the training script divides an update's loss"),
        "{}",
        imported.recipe
    );
    for (key, verdict) in [
        ("freeze_text_encoder", "default: it is frozen in any case"),
        ("description_column_name", "default: descriptions are read from a column of this name"),
        ("prompt_column_name", "default: texts are read from a column of this name"),
        ("target_audio_column_name", "default: audio is read from a column of this name"),
        (
            "prompt_tokenizer_name",
            "no effect, because texts and descriptions are read with the tokenizer in the model's",
        ),
        (
            "description_tokenizer_name",
            "no effect, because texts and descriptions are read with the tokenizer",
        ),
        ("save_to_disk", "no effect, because audio becomes codes once"),
        ("lr_scheduler_type", "used: schedule: constant"),
        ("max_duration_in_seconds", "used: data.max_seconds: "),
        ("min_duration_in_seconds", "used: data.min_seconds: 2"),
        ("eval_dataset_name", "no effect, because validation clips are chosen from data.dir"),
        ("max_text_length", "no effect, because clips with "),
        ("train_dataset_name", "asks: `"),
        ("train_metadata_dataset_name", "asks: `"),
    ] {
        assert!(said(imported, key).starts_with(verdict), "{key}: {}", said(imported, key));
    }
    let descriptions = said(imported, "train_metadata_dataset_name");
    assert!(
        descriptions.contains("is not downloaded") && descriptions.contains("`parler: {descriptions: …}`")
    );
    r
}

#[test]
fn v0_1() {
    let imported = read("starting_point_0.01.json", &file(&[V0_1, COMMON]));
    let (rate, bf16) = (Some(9.5e-4), Some(Precision::Bf16Mixed));
    let r = published(
        &imported,
        (Some(Batch::Clips(24)), Some(40.0), rate, Some(20_000), bf16, (2.0, 30.0), 456),
    );
    assert_eq!((r.save_every, r.validate_every, r.checkpoint.is_none()), (10_000, 10_000, true));
    assert_eq!(
        imported.effective_batch.as_deref(),
        Some("3 clips per device × 8 accumulated × 1 rank (nothing says more) = 24 clips")
    );
    assert_eq!(notes(&imported, "is `warmup: 20000` meant?"), 1);
    let several = said(&imported, "train_dataset_name");
    assert!(several.contains("are several, and none is downloaded: bring them into one folder"), "{several}");
    assert_eq!(notes(&imported, "clips with 400 characters of description and more are left out there"), 1);
}

#[test]
fn v1_mini_and_large() {
    let bf16 = Some(Precision::Bf16Mixed);
    let mini = read("starting_point_v1.json", &file(&[MINI, V1, COMMON]));
    let numbers = (Some(Batch::Clips(24)), Some(4.0), Some(9.5e-4), Some(20_000), bf16, (2.0, 30.0), 456);
    let r = published(&mini, numbers);
    assert!(
        said(&mini, "attn_implementation").starts_with("no effect, because attention is one operation here")
    );
    // The same as flags.
    let json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&file(&[MINI, V1, COMMON])).unwrap();
    let flags: String = json
        .iter()
        .map(|(key, value)| match value {
            serde_json::Value::Array(of) => format!(" --{key} {}", of[0]),
            value => format!(" --{key} {value}"),
        })
        .collect();
    assert_eq!(recipe(&read("train.sh", &format!("accelerate launch run.py{flags}"))), r);
    let large = read("starting_point_v1_large.json", &file(&[LARGE, V1, COMMON]));
    let numbers = (Some(Batch::Clips(12)), Some(4.0), Some(1.5e-3), Some(10_000), bf16, (2.0, 30.0), 738);
    assert_eq!(published(&large, numbers).keep, 10);
    // Over several ranks, as accelerate's file says.
    let launcher = Source::text(
        "accelerate.yaml",
        "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: 'no'\n",
    );
    let both = [launcher, Source::text("v1.json", file(&[MINI, V1, COMMON]))];
    let imported = import(&both, &Folders::default(), &[&TRAINER]).unwrap();
    let over = recipe(&imported);
    assert_eq!((over.batch, over.ranks, over.precision), (Some(Batch::Clips(192)), Some(8), bf16));
    assert_eq!(
        said(&imported, "mixed_precision"),
        "no effect, because the training script computes in what `dtype` says"
    );
}

#[test]
fn the_notebook() {
    let imported = read("cell.txt", NOTEBOOK);
    let fp16 = Some(Precision::Fp16Mixed);
    let numbers = (Some(Batch::Clips(36)), Some(2.0), Some(1e-4), Some(50), fp16, (2.0, 20.0), 456);
    let r = published(&imported, numbers);
    assert_eq!(r.checkpoint.map(|c| c.0.to_string()).as_deref(), Some("all"));
    assert_eq!(notes(&imported, "meant?"), 0);
    let folders = Folders { model: Some("m".into()), data: Some("d".into()) };
    let with = import(&[Source::text("cell.txt", NOTEBOOK)], &folders, &[&TRAINER]).unwrap();
    assert_eq!(said(&with, "train_dataset_name"), "no effect, because --data names the folder");
    let r = recipe(&with);
    assert_eq!((r.model.dir.as_path(), r.data.dir.as_deref()), (Path::new("m"), Some(Path::new("d"))));
    // Descriptions in the data set itself.
    let own = read("cell.txt", &NOTEBOOK.replace("jenny-tts-6h-tagged", "jenny-tts-6h"));
    assert_eq!(
        said(&own, "train_metadata_dataset_name"),
        "default: descriptions are read where the clips are"
    );
}

#[test]
fn every_key_of_the_script_is_known() {
    let keys = r#""config_name": "x", "cache_dir": "c", "use_fast_tokenizer": true, "model_revision": "main",
        "pad_token_id": 1024, "decoder_start_token_id": 1025, "do_sample": true, "temperature": 1.0, "max_length": 2580,
        "bandwidth": 6, "asr_model_name_or_path": "a", "clap_model_name_or_path": "b", "attn_implementation": "eager",
        "cross_attention_implementation_strategy": "always_eager", "prompt_padding_side": "left",
        "train_dataset_samples": "1+2", "overwrite_cache": false, "max_train_samples": 96,
        "max_prompt_token_length": 100, "max_description_token_length": 200, "pad_to_max_length": false,
        "preprocessing_only": false, "token": "hf_abc", "use_auth_token": "hf_def", "trust_remote_code": false,
        "wandb_project": "p", "wandb_run_name": "r", "save_codec_steps": 500, "pad_to_multiple_of": 2,
        "eval_dataloader_num_workers": 0, "compute_clap_similarity_metric": true, "compute_noise_level_metric": true,
        "noise_level_to_compute_clean_wer": 25, "eval_generation_steps": 5, "codebook_weights": [1, 1, 1]"#;
    let imported = read("all.json", &file(&[keys, V0_1, COMMON]));
    assert!(imported.rows.iter().all(|r| !matches!(r.verdict, Verdict::Unknown(_))), "{imported}");
    for key in ["pad_token_id", "decoder_start_token_id", "codebook_weights", "max_train_samples"] {
        assert!(said(&imported, key).starts_with("asks: "), "{key}");
    }
    for key in ["max_prompt_token_length", "max_description_token_length"] {
        assert!(said(&imported, key).contains("are left out there"), "{key}");
    }
    let all = format!("{imported}{}", imported.recipe);
    assert!(
        !all.contains("hf_abc") && !all.contains("hf_def") && all.contains("token: (not shown)"),
        "{all}"
    );
    recipe(&imported);
}

/// What an absent key means to the script, the recipe says.
#[test]
fn what_is_left_out_is_the_scripts() {
    let imported = read("a.json", r#"{"prompt_column_name": "text", "output_dir": "o"}"#);
    let r = recipe(&imported);
    assert_eq!(
        (r.learning_rate, r.warmup, r.weight_decay, r.epochs),
        (Some(5e-5), Some(0), Some(0.0), Some(3.0))
    );
    assert_eq!(r.schedule.unwrap().to_string(), "linear");
    assert_eq!((r.batch, r.precision), (Some(Batch::Clips(8)), Some(Precision::Fp32)));
    assert_eq!((r.data.min_seconds, r.data.max_seconds), (0.0, 35.0));
    assert_eq!(notes(&imported, "freeze_text_encoder is absent: the text encoder is trained there"), 1);
    assert_eq!(notes(&imported, "500 characters"), 1);
    // What is there as none, or as code, is not absent.
    let none = r#"{"prompt_column_name": "text", "max_text_length": null}"#;
    assert_eq!(notes(&read("a.json", none), "500 characters"), 0);
    let code = recipe(&read("a.py", "prompt_column_name='text', learning_rate=rate, warmup_ratio=w"));
    assert_eq!((code.learning_rate, code.warmup), (None, None));
    // A constant rate of transformers has no warm-up, and another's is not there.
    let constant = r#"{"prompt_column_name": "text", "lr_scheduler_type": "constant", "warmup_steps": 50}"#;
    assert_eq!(recipe(&read("a.json", constant)).warmup, Some(0));
    let odd = recipe(&read("a.json", &constant.replace("\"constant\"", "\"reduce_lr_on_plateau\"")));
    assert_eq!((odd.schedule.unwrap().to_string().as_str(), odd.warmup), ("linear", Some(50)));
    let linear = recipe(&read("a.json", &constant.replace("\"constant\"", "\"linear\"")));
    assert_eq!(linear.schedule.unwrap().to_string(), "linear");
}

#[test]
fn what_cannot_be_meant_here_is_asked() {
    let text = r#"{"freeze_text_encoder": false, "description_column_name": "caption", "prompt_column_name": "prompt",
        "id_column_name": "line_id", "target_audio_column_name": "speech", "description_tokenizer_name": "google/flan-t5-large",
        "prompt_tokenizer_name": "parler-tts/parler-tts-mini-v1.1", "train_metadata_dataset_name": "x/y",
        "optim": "adamw_8bit", "fp16": true, "save_strategy": "no", "save_steps": 70, "max_steps": 1000}"#;
    let imported = read("a.json", text);
    for (key, question) in [
        ("freeze_text_encoder", "it is trained there, and frozen here in any case"),
        (
            "description_column_name",
            "text_description or description: rename `caption` to `text_description`",
        ),
        ("prompt_column_name", "rename `prompt` to `text` in the data"),
        ("id_column_name", "rename `line_id` to `id`"),
        ("target_audio_column_name", "rename `speech` to `audio`"),
        ("prompt_tokenizer_name", "have two tokenizers there"),
        ("description_tokenizer_name", "have two tokenizers there"),
    ] {
        let said = said(&imported, key);
        assert!(said.starts_with("asks: ") && said.contains(question), "{key}: {said}");
        assert_eq!(imported.notes.iter().filter(|n| n.starts_with(&format!("{key}: "))).count(), 1, "{key}");
    }
    for key in ["optim", "save_strategy"] {
        assert_eq!(said(&imported, key), "no effect, because the training script never reads it");
    }
    let r = recipe(&imported);
    assert_eq!((r.optimizer, r.precision, r.save_every), (None, Some(Precision::Fp32), 70));
    assert_eq!((r.updates, r.epochs), (Some(1000), None));
    // A second name that is read, and one tokenizer by default.
    let imported = read(
        "a.json",
        r#"{"description_column_name": "description", "prompt_tokenizer_name": "m", "model_name_or_path": "m"}"#,
    );
    assert_eq!(
        said(&imported, "description_column_name"),
        "default: descriptions are read from it where there is no `text_description`"
    );
    assert!(said(&imported, "prompt_tokenizer_name").starts_with("no effect"));
    for (text, message) in [
        (
            r#"{"freeze_text_encoder": "maybe"}"#,
            "a.json:1:25: freeze_text_encoder: maybe is not true or false",
        ),
        (r#"{"max_duration_in_seconds": 900}"#, "max_duration_in_seconds: 900 is not from 0 to 600"),
        (
            r#"{"max_duration_in_seconds": 2, "min_duration_in_seconds": 2}"#,
            "2 is not above the shortest clip's 2",
        ),
        (r#"{"prompt_column_name": "text", "dtype": "int8"}"#, "`int8` is not float32, float16 or bfloat16"),
    ] {
        let refused = import(&[Source::text("a.json", text)], &Folders::default(), &[&TRAINER]);
        let error = refused.map(|i| i.recipe).expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
}
