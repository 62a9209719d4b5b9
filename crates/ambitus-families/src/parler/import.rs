//! Configurations of Parler-TTS's training script, for `ambitus import`.

use ambitus_recipe::import::{Absent, Means, Trainer};
use ambitus_recipe::recipe::Precision;

/// `training/arguments.py` and what `training/run_parler_tts_training.py` makes of it: a JSON file, or flags. It has transformers'
/// arguments too, but not its Trainer.
pub(super) const TRAINER: Trainer = Trainer {
    signs: &[
        "audio_encoder_per_device_batch_size",
        "description_column_name",
        "description_tokenizer_name",
        "freeze_text_encoder",
        "prompt_column_name",
        "prompt_tokenizer_name",
        "temporary_save_to_disk",
        "train_metadata_dataset_name",
    ],
    precision: Some((Precision::Fp32, "the training script's, where dtype is absent")),
    nothing: NOTHING,
    absent: ABSENT,
    notes: &[
        (
            "parler.encoder_draws",
            "the training script draws the frozen text encoder's dropout for each use, here it drops nothing: `parler: {encoder_draws: 8}` has \
             each use read one of eight draws",
        ),
        (
            "parler.normaliser",
            "the training script divides an update's loss by all cells of its padded batches, here it is divided by those that are \
         scored: `parler: {normaliser: script}` divides as the script does, with `script_clips` as its per_device_train_batch_size",
        ),
    ],
    descriptions: Some("parler.descriptions"),
    ..Trainer::PLAIN
};

/// Keys that change nothing here, and why.
const NOTHING: &[(&str, &[&str])] = &[
    (
        "the training script never reads it",
        &[
            "adafactor",
            "add_audio_samples_to_wandb",
            "config_name",
            "label_smoothing_factor",
            "lr_scheduler_kwargs",
            "model_revision",
            "neftune_noise_alpha",
            "optim",
            "optim_args",
            "overwrite_cache",
            "save_strategy",
        ],
    ),
    ("the training script computes in what `dtype` says", &["bf16", "fp16", "mixed_precision"]),
    ("the training script uses it for streamed data sets only, and streams none", &["train_dataset_samples"]),
    (
        "audio becomes codes once, clip by clip within the memory budget, and they are kept in data.cache",
        &[
            "audio_encoder_per_device_batch_size",
            "save_codec_steps",
            "save_to_disk",
            "temporary_save_to_disk",
        ],
    ),
    ("`ambitus prepare RECIPE` makes the clips and trains nothing", &["preprocessing_only"]),
    ("the codec and its rate are read from the model's own folder (model.dir)", &["feature_extractor_name"]),
    ("it is for codecs of several rates; that of the model has one", &["bandwidth"]),
    ("the tokenizer's file is read itself, by neither of transformers' two readers", &["use_fast_tokenizer"]),
    ("nothing is padded: positions are counted from a clip's own first token", &["prompt_padding_side"]),
    (
        "nothing is downloaded, and no code of a model's folder is run",
        &["cache_dir", "token", "trust_remote_code", "use_auth_token"],
    ),
    ("all that lies in data.dir is trained on", &["train_dataset_config_name", "train_split_name"]),
    (
        "validation clips are chosen from data.dir, as data.validation says",
        &[
            "eval_dataset_config_name",
            "eval_dataset_name",
            "eval_metadata_dataset_name",
            "eval_split_name",
            "max_eval_samples",
        ],
    ),
    (
        "it says how audio is generated at evaluation, which trains nothing",
        &["do_sample", "eval_generation_steps", "max_length", "temperature"],
    ),
    (
        "no other model scores what is generated; `samples:` has it spoken while it trains",
        &[
            "asr_model_name_or_path",
            "clap_model_name_or_path",
            "compute_clap_similarity_metric",
            "compute_noise_level_metric",
            "noise_level_to_compute_clean_wer",
        ],
    ),
    (
        "it is loader threads: clips are read ahead inside the memory that the plan counts",
        &["eval_dataloader_num_workers"],
    ),
];

/// What it does where keys are absent, as far as an absent key of a recipe means something else.
const ABSENT: &[Absent] = &[
    Absent { keys: &["learning_rate"], means: Means::Line("learning_rate", "5e-5") },
    Absent { keys: &["lr_scheduler_type"], means: Means::Line("schedule", "linear") },
    Absent { keys: &["warmup_steps", "warmup_ratio"], means: Means::Line("warmup", "0") },
    Absent { keys: &["weight_decay"], means: Means::Line("weight_decay", "0") },
    Absent { keys: &["min_duration_in_seconds"], means: Means::Line("data.min_seconds", "0") },
    Absent { keys: &["max_duration_in_seconds"], means: Means::Line("data.max_seconds", "35") },
    Absent {
        keys: &["max_text_length"],
        means: Means::Note(
            "data.dir",
            "clips with 500 characters of description and more are left out there, not here",
        ),
    },
    Absent {
        keys: &["freeze_text_encoder"],
        means: Means::Note("freeze", "the text encoder is trained there, and frozen here in any case"),
    },
];

#[cfg(test)]
mod tests;
