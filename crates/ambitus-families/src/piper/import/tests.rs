//! A command of each trainer, the file that Lightning keeps of a run, the options beside a checkpoint, and every key of both trainers.

use super::*;
use crate::family::{self, Family};
use ambitus_recipe::import::{Folders, Imported, Source, Verdict, import};
use ambitus_recipe::recipe::{Batch, Precision, Recipe, Validation};

#[track_caller]
fn read(name: &str, text: &str) -> Imported {
    import(&[Source::text(name, text)], &Folders::default(), &[&TRAINER, &OLDER])
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[track_caller]
fn said(imported: &Imported, key: &str) -> String {
    let row = imported.rows.iter().find(|r| r.key == key);
    row.unwrap_or_else(|| panic!("no key {key}")).verdict.to_string()
}

#[track_caller]
fn recipe(imported: &Imported) -> Recipe {
    let read = Recipe::parse_with(&imported.recipe, "r.yaml", &[&super::super::keys::SECTION]);
    read.unwrap_or_else(|e| panic!("{}\n{e}", imported.recipe)).0
}

#[track_caller]
fn noted(imported: &Imported, part: &str) {
    assert!(imported.notes.iter().any(|n| n.contains(part)), "{part}\n{:#?}", imported.notes);
}

#[track_caller]
fn all_known(imported: &Imported) {
    let unknown = imported.rows.iter().filter(|r| matches!(r.verdict, Verdict::Unknown(_)));
    assert_eq!(unknown.map(|r| &*r.key).collect::<Vec<_>>(), [""; 0], "{imported}");
}

/// As the project's page on training has it, with what people add.
const COMMAND: &str = r#"#!/bin/sh
python3 -m piper.train fit \
  --data.voice_name "mary" \
  --data.csv_path /data/mary/metadata.csv \
  --data.audio_dir /data/mary/wavs/ \
  --model.sample_rate 22050 \
  --data.espeak_voice "en-us" \
  --data.cache_dir /data/cache/ \
  --data.config_path /data/mary/config.json \
  --data.batch_size 16 \
  --trainer.max_epochs 3000 \
  --trainer.precision bf16-mixed \
  --model.learning_rate 1e-4 \
  --trainer.callbacks.every_n_epochs 5 \
  --ckpt_path "lessac/epoch=2164-step=1355540.ckpt"  # recommended
"#;

#[test]
fn a_command_of_piper1() {
    let imported = read("train.sh", COMMAND);
    all_known(&imported);
    let r = recipe(&imported);
    assert_eq!((r.batch, r.epochs, r.updates), (Some(Batch::Clips(16)), Some(835.0), None));
    assert_eq!((r.learning_rate, r.betas), (Some(1e-4), Some([0.8, 0.99])));
    let d = &r.players["d"];
    assert_eq!((d.learning_rate, d.betas), (Some(1e-4), Some([0.5, 0.9])));
    assert_eq!(r.schedule.as_ref().unwrap().to_string(), "constant");
    assert_eq!((r.precision, r.warmup, r.clip), (Some(Precision::Bf16Mixed), Some(0), Some(1e9)));
    assert_eq!(r.data.validation, Validation::Share(0.1));
    assert_eq!(
        said(&imported, "trainer.max_epochs"),
        "used: epochs: 835, what is left of 3000 after the checkpoint's 2165"
    );
    for (key, part) in [
        ("ckpt_path", "asks: put lessac/epoch=2164-step=1355540.ckpt into a folder as model.ckpt"),
        ("data.csv_path", "asks: clips are those of data.dir: --data /data/mary/metadata.csv"),
        ("data.espeak_voice", "is read from config.json in the model's folder"),
        ("data.batch_size", "used: batch: {clips: 16}"),
        ("model.sample_rate", "the model's shape is read from its own folder"),
        ("trainer.callbacks.every_n_epochs", "a number of updates here"),
    ] {
        assert!(said(&imported, key).contains(part), "{key}: {}", said(&imported, key));
    }
    noted(&imported, "Lightning takes rates, betas and eps out of the checkpoint");
    noted(&imported, "clips of less than 0.3 and more than 30 seconds are left out");
    noted(&imported, "data.trim_silence is absent: silence before and after speech");
    let folders = Folders { model: Some("m".into()), data: Some("d".into()) };
    let named = import(&[Source::text("train.sh", COMMAND)], &folders, &[&TRAINER, &OLDER]).unwrap();
    assert!(said(&named, "ckpt_path").contains("--model names the folder"));
    assert!(said(&named, "data.csv_path").contains("--data says where clips lie"));
}

/// What Lightning's command line writes of a run.
const CONFIG: &str = "\
seed_everything: 1234
trainer:
  accelerator: auto
  strategy: auto
  devices: auto
  num_nodes: 1
  precision: null
  logger: null
  callbacks:
  - class_path: lightning.pytorch.callbacks.ModelCheckpoint
    init_args:
      monitor: val_mel
      save_top_k: 5
  fast_dev_run: false
  max_epochs: 1000
  min_epochs: null
  max_steps: -1
  max_time: null
  limit_train_batches: null
  overfit_batches: 0.0
  val_check_interval: null
  check_val_every_n_epoch: 1
  accumulate_grad_batches: 4
  gradient_clip_val: 1.0
  gradient_clip_algorithm: null
model:
  sample_rate: 22050
  resblock: '2'
  resblock_kernel_sizes:
  - 3
  - 5
  - 7
  use_mrd: true
  learning_rate: 0.0002
  learning_rate_d: 0.00015
  betas:
  - 0.8
  - 0.99
  betas_d:
  - 0.4
  - 0.9
  eps: 1.0e-09
  lr_decay: 0.999875
  lr_decay_d: 0.9999
  c_mel: 30
  c_kl: 1.0
  grad_clip: null
  vocoder_warmstart_ckpt: lessac.ckpt
  warmstart_ckpt: null
  mos_metric: utmos
  dataset: null
data:
  csv_path: metadata.csv
  cache_dir: cache
  espeak_voice: en-us
  config_path: config.json
  voice_name: mary
  batch_size: 8
  validation_split: 0.0
  num_test_examples: 0
  trim_silence: false
  dataset_type: phoneme_ids
ckpt_path: null
";

#[test]
fn the_file_of_a_run_of_piper1() {
    let imported = read("config.yaml", CONFIG);
    all_known(&imported);
    let r = recipe(&imported);
    assert_eq!((r.batch, r.epochs, r.seed), (Some(Batch::Clips(8)), Some(1000.0), 1234));
    assert_eq!((r.learning_rate, r.eps, r.precision), (Some(2e-4), Some(1e-9), Some(Precision::Fp32)));
    let d = &r.players["d"];
    assert_eq!((d.learning_rate, d.betas), (Some(1.5e-4), Some([0.4, 0.9])));
    assert_eq!((r.clip, r.ranks, r.data.validation.clone()), (Some(1e9), None, Validation::Share(0.0)));
    assert_eq!(
        [r.own("piper", "phoneme_ids"), r.own("piper", "warm_start")],
        [Some(&true.into()), Some(&"vocoder".into())]
    );
    noted(&imported, "put lessac.ckpt into a folder as model.ckpt");
    for (key, part) in [
        ("model.lr_decay", "no effect, because its trainer makes schedules of it and never steps them"),
        ("trainer.accumulate_grad_batches", "asks: Lightning refuses it"),
        ("trainer.gradient_clip_val", "asks: Lightning refuses it"),
        ("model.grad_clip", "never reads it"),
        ("model.use_mrd", "none of resolutions"),
        ("model.c_mel", "asks: the options in the model's checkpoint say it here: do they say 30 there?"),
        ("model.c_kl", "default: so it is"),
        ("model.vocoder_warmstart_ckpt", "used: piper.warm_start: vocoder"),
        ("data.trim_silence", "default: it is off"),
        ("trainer.overfit_batches", "default: it is off"),
        ("trainer.devices", "default: all that the machine has"),
    ] {
        assert!(said(&imported, key).contains(part), "{key}: {}", said(&imported, key));
    }
    noted(&imported, "`precision: tf32-mixed` does so");
    noted(&imported, "model.use_mrd: true (config.yaml:33:12): not taken over");
}

/// As its page on training has it.
const OLDER_COMMAND: &str = "python3 -m piper_train \\\n    --dataset-dir /voice/training \\\n    --accelerator 'gpu' \\\n    \
    --devices 1 \\\n    --batch-size 32 \\\n    --validation-split 0.0 \\\n    --num-test-examples 0 \\\n    \
    --max_epochs 10000 \\\n    --resume_from_checkpoint /voice/epoch=2000-step=9000.ckpt \\\n    --checkpoint-epochs 1 \\\n    \
    --precision 32 \\\n    --quality medium --max-phoneme-ids 400 --accumulate_grad_batches 2 --gradient_clip_val 3\n";

#[test]
fn a_command_of_the_older_trainer() {
    let imported = read("train.sh", OLDER_COMMAND);
    all_known(&imported);
    let r = recipe(&imported);
    assert_eq!((r.batch, r.epochs, r.ranks), (Some(Batch::Clips(64)), Some(7999.0), Some(1)));
    assert_eq!((r.learning_rate, r.betas, r.players.len()), (Some(2e-4), Some([0.8, 0.99]), 0));
    assert_eq!((r.precision, r.clip), (Some(Precision::Fp32), Some(3.0)));
    assert_eq!(r.schedule.as_ref().unwrap().to_string(), "exponential,gamma=0.999875,per=epoch");
    assert_eq!(r.data.validation, Validation::Share(0.0));
    for (key, part) in [
        ("quality", "no effect, because the checkpoint says it"),
        ("max_phoneme_ids", "clips of more than 400 phoneme ids are left out there"),
        ("dataset_dir", "--data /voice/training"),
        ("checkpoint_epochs", "a number of updates here"),
        ("accelerator", "leaves the device open"),
        ("resume_from_checkpoint", "as model.ckpt"),
    ] {
        assert!(said(&imported, key).contains(part), "{key}: {}", said(&imported, key));
    }
    // 2e-4 · 0.999875^2001.
    noted(&imported, "after 2001 epochs some 1.557e-4");
    let new =
        OLDER_COMMAND.replace("--resume_from_checkpoint /voice/epoch=2000-step=9000.ckpt", "--quality high");
    let new = new.replace("--quality medium", "").replace("--max_epochs 10000", "");
    let new = read("train.sh", &new);
    assert!(new.recipe.contains("piper:\n  quality: high"), "{}", new.recipe);
    assert_eq!(recipe(&new).epochs, Some(1000.0));
    noted(&new, "a new voice is trained there");
    let done = read("train.sh", &OLDER_COMMAND.replace("--max_epochs 10000", ""));
    assert_eq!(recipe(&done).epochs, None);
    noted(&done, "1000 are meant there, and the checkpoint has 2001");
}

/// Whose checkpoint a run begins with, and how many speakers it then has.
#[test]
fn warm_starts_of_both_trainers() {
    let own = |r: &Recipe, key: &str| r.own("piper", key).cloned();
    let piper1 =
        |more: &str| read("train.sh", &format!("python -m piper.train fit --data.voice_name a {more}"));
    let full = piper1("--model.warmstart_ckpt one.ckpt --model.num_speakers 3");
    all_known(&full);
    let r = recipe(&full);
    assert_eq!((own(&r, "speakers"), own(&r, "warm_start")), (Some(3.into()), None));
    assert!(said(&full, "model.warmstart_ckpt").contains("asks: put one.ckpt into a folder as model.ckpt"));
    // A vocoder and a whole checkpoint, or a run that goes on: of which files is for the reader to say.
    for other in ["--model.warmstart_ckpt b.ckpt", "--ckpt_path b.ckpt"] {
        let both = piper1(&format!("--model.vocoder_warmstart_ckpt a.ckpt {other}"));
        assert_eq!(own(&recipe(&both), "warm_start"), None);
        assert!(said(&both, "model.vocoder_warmstart_ckpt").contains("parts of two checkpoints"));
    }
    let on = piper1("--ckpt_path a.ckpt --model.num_speakers 3");
    assert_eq!(own(&recipe(&on), "speakers"), None);
    let is = said(&on, "model.num_speakers");
    assert!(is.contains("the checkpoint says it"), "{is}");
    let new = piper1("--model.num_speakers 4");
    assert_eq!(own(&recipe(&new), "speakers"), Some(4.into()));
    let command = "python3 -m piper_train --dataset-dir d --batch-size 4 --resume_from_single_speaker_checkpoint one.ckpt";
    let older = read("train.sh", command);
    all_known(&older);
    assert!(said(&older, "resume_from_single_speaker_checkpoint").contains("as model.ckpt"));
    noted(&older, "as many as num_speakers in the dataset's config.json: write them as `piper.speakers`");
    let bad = import(
        &[Source::text("train.sh", format!("{command} --num_speakers 0"))],
        &Folders::default(),
        &[&OLDER],
    );
    assert!(bad.is_err_and(|e| e.to_string().contains("num_speakers")));
}

#[test]
fn the_options_beside_a_checkpoint() {
    let text = "batch_size: 32\nbetas: !!python/tuple\n- 0.8\n- 0.99\nbetas_d: !!python/tuple\n- 0.5\n- 0.9\neps: 1.0e-09\n\
                learning_rate: 0.0002\nlearning_rate_d: 0.0001\nc_mel: 45\ndataset: null\nuse_mrd: false\ngrad_clip: null\n";
    let imported = read("hparams.yaml", text);
    all_known(&imported);
    let r = recipe(&imported);
    assert_eq!((r.batch, r.betas, r.epochs), (Some(Batch::Clips(32)), Some([0.8, 0.99]), None));
    assert_eq!(r.players["d"].betas, Some([0.5, 0.9]));
    noted(&imported, "max_epochs is absent: it trains there until it is stopped");
}

/// Arguments of `VitsModel`, of `VitsDataModule`, and of Lightning's Trainer and command line.
const MODEL: &str = "batch_size sample_rate num_symbols num_speakers resblock resblock_kernel_sizes resblock_dilation_sizes \
    upsample_rates upsample_initial_channel upsample_kernel_sizes filter_length hop_length win_length mel_channels mel_fmin mel_fmax \
    inter_channels hidden_channels filter_channels n_heads n_layers kernel_size p_dropout n_layers_q use_spectral_norm gin_channels \
    use_sdp segment_size use_mrd learning_rate learning_rate_d betas betas_d eps lr_decay lr_decay_d init_lr_ratio warmup_epochs c_mel \
    c_kl grad_clip vocoder_warmstart_ckpt warmstart_ckpt mos_metric dataset";
const DATA: &str = "csv_path cache_dir espeak_voice config_path voice_name sample_rate audio_dir alignments_dir num_symbols \
    num_speakers batch_size validation_split num_test_examples filter_length hop_length win_length segment_size num_workers \
    trim_silence keep_seconds_before_silence keep_seconds_after_silence phoneme_type dataset_type phonemes_path vowel_clusters";
const LIGHTNING: &str = "accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps \
    min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches val_check_interval \
    check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing enable_progress_bar enable_model_summary \
    accumulate_grad_batches gradient_clip_val gradient_clip_algorithm deterministic benchmark inference_mode use_distributed_sampler \
    profiler detect_anomaly barebones plugins sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir model_registry \
    enable_autolog_hparams";
const COMMAND_LINE: &str = "seed_everything ckpt_path config weights_only optimizer lr_scheduler";
/// Of the older trainer, its model's options, and those of Lightning 1.7.
const OLDER_KEYWORDS: &str = "dataset_dir checkpoint_epochs quality resume_from_single_speaker_checkpoint seed batch_size \
    validation_split num_test_examples max_phoneme_ids hidden_channels inter_channels filter_channels n_layers n_heads";
const OLDER_MODEL: &str = "num_symbols num_speakers resblock resblock_kernel_sizes resblock_dilation_sizes upsample_rates \
    upsample_initial_channel upsample_kernel_sizes filter_length hop_length win_length mel_channels sample_rate sample_bytes channels \
    mel_fmin mel_fmax kernel_size p_dropout n_layers_q use_spectral_norm gin_channels use_sdp segment_size dataset learning_rate betas \
    eps lr_decay init_lr_ratio warmup_epochs c_mel c_kl grad_clip num_workers";
const OLDER_LIGHTNING: &str = "logger enable_checkpointing default_root_dir gradient_clip_val gradient_clip_algorithm num_nodes \
    num_processes devices gpus auto_select_gpus tpu_cores ipus enable_progress_bar overfit_batches track_grad_norm \
    check_val_every_n_epoch fast_dev_run accumulate_grad_batches max_epochs min_epochs max_steps min_steps max_time limit_train_batches \
    limit_val_batches limit_test_batches limit_predict_batches val_check_interval log_every_n_steps accelerator strategy sync_batchnorm \
    precision enable_model_summary weights_save_path num_sanity_val_steps resume_from_checkpoint profiler benchmark deterministic \
    reload_dataloaders_every_n_epochs auto_lr_find replace_sampler_ddp detect_anomaly auto_scale_batch_size plugins amp_backend \
    amp_level move_metrics_to_cpu multiple_trainloader_mode";

/// Returns a value that a key may have.
fn value(key: &str) -> &'static str {
    match key {
        "betas" | "betas_d" => "[0.8, 0.9]",
        "accelerator" => "gpu",
        "precision" => "32",
        "quality" => "high",
        "strategy" => "ddp",
        "dataset_type" => "text",
        "validation_split" | "learning_rate" | "learning_rate_d" | "eps" | "lr_decay" | "p_dropout" => "0.1",
        _ if key.ends_with("ckpt") || key.ends_with("checkpoint") || key == "ckpt_path" => "a.ckpt",
        _ if key.ends_with("path") || key.ends_with("dir") || key == "config" => "a",
        "voice_name" | "espeak_voice" | "callbacks" | "logger" | "optimizer" | "lr_scheduler" => "a",
        _ => "1",
    }
}

#[test]
fn every_key_of_both_trainers_is_known() {
    let flags = |section: &str, names: &str| -> String {
        names.split_whitespace().map(|name| format!(" --{section}{name} '{}'", value(name))).collect()
    };
    let sections = [("model.", MODEL), ("data.", DATA), ("trainer.", LIGHTNING), ("", COMMAND_LINE)];
    let all: String = sections.iter().map(|(section, names)| flags(section, names)).collect();
    let count: usize = sections.iter().map(|(_, names)| names.split_whitespace().count()).sum();
    let older: String = [OLDER_KEYWORDS, OLDER_MODEL, OLDER_LIGHTNING].map(|names| flags("", names)).concat();
    let options = format!("python -m piper.train{}", flags("", MODEL));
    for (text, keys) in [
        (format!("python -m piper.train fit{all}"), count),
        (options, MODEL.split_whitespace().count()),
        (format!("python -m piper_train{older}"), older.matches("--").count()),
    ] {
        let imported = read("train.sh", &text);
        assert_eq!(imported.rows.len(), keys);
        all_known(&imported);
        // What is said of a key is said because of its value.
        let empty =
            imported.rows.iter().filter(|r| r.verdict.to_string().contains("as if it were not there"));
        assert_eq!(empty.map(|r| &*r.key).collect::<Vec<_>>(), [""; 0], "{imported}");
    }
}

#[test]
fn files_of_other_trainers_are_not_taken_for_pipers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parity/xtts_files/fixtures/config.json");
    let xtts = std::fs::read_to_string(path).unwrap();
    let all = family::trainers(crate::ALL);
    let own = super::super::Piper.trainers();
    let is_own = |t: &Trainer| own.iter().any(|o| o.signs == t.signs);
    let others: Vec<_> = all.iter().copied().filter(|t| !is_own(t)).collect();
    assert_eq!(others.len() + 2, all.len());
    for (name, text) in [
        ("config.json", &*xtts),
        ("config.yaml", include_str!("../../musicgen/import/composed.yaml")),
        (
            "config.yaml",
            "datasets:\n  name: voice\n  batch_size_per_gpu: 3200\nmodel:\n  name: F5TTS_v1_Base\n",
        ),
        ("train.sh", "--train_csv a.csv --batch_size 4 --num_epochs 3 --learning_rate 1e-5"),
    ] {
        let of = |trainers: &[&'static Trainer]| {
            let read = import(&[Source::text(name, text)], &Folders::default(), trainers);
            read.unwrap_or_else(|e| panic!("{name}: {e}")).to_string()
        };
        assert_eq!(of(&all), of(&others));
    }
}
