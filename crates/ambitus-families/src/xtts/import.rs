//! Configurations of XTTS's trainers, for `ambitus import`.

use ambitus_recipe::import::{Absent, LOGS, Means, Trainer};
use ambitus_recipe::recipe::Precision;

/// Coqui's `config.json` (`GPTTrainerConfig`), which AllTalk's trainer writes as well, and the arguments of AllTalk's `train_gpt`, which
/// its page of settings fills in.
pub(super) const TRAINER: Trainer = Trainer {
    signs: &[
        "disable_shared_memory",
        "grad_acumm",
        "learning_rate_scheduler",
        "model_args.gpt_code_stride_len",
        "model_args.gpt_num_audio_tokens",
        "model_to_train",
        "optimizer_wd_only_on_weights",
        "train_csv",
    ],
    precision: Some((Precision::Fp32, "the trainer's, where mixed_precision is absent or off")),
    has_length: true,
    nothing: NOTHING,
    absent: ABSENT,
    notes: &[(
        "epochs",
        "its trainer draws each clip of an epoch at random, some twice and some never; here an epoch has every clip once",
    )],
    ..Trainer::PLAIN
};

/// Keys that change nothing here, and why.
const NOTHING: &[(&str, &[&str])] = &[
    (
        "the model's shape is read from its own folder (model.dir)",
        &[
            "model",
            "model_args.cond_d_vector_in_each_upsampling_layer",
            "model_args.d_vector_dim",
            "model_args.decoder_input_dim",
            "model_args.duration_const",
            "model_args.gpt_code_stride_len",
            "model_args.gpt_layers",
            "model_args.gpt_max_audio_tokens",
            "model_args.gpt_max_prompt_tokens",
            "model_args.gpt_max_text_tokens",
            "model_args.gpt_n_heads",
            "model_args.gpt_n_model_channels",
            "model_args.gpt_num_audio_tokens",
            "model_args.gpt_number_text_tokens",
            "model_args.gpt_start_audio_token",
            "model_args.gpt_start_text_token",
            "model_args.gpt_stop_audio_token",
            "model_args.gpt_stop_text_token",
            "model_args.gpt_use_perceiver_resampler",
            "model_args.num_chars",
            "model_args.output_hop_length",
        ],
    ),
    (
        "its files are those of the model's folder (--model DIR)",
        &[
            "model_args.clvp_checkpoint",
            "model_args.decoder_checkpoint",
            "model_args.dvae_checkpoint",
            "model_args.gpt_checkpoint",
            "model_args.mel_norm_file",
            "model_args.tokenizer_file",
            "model_args.vocoder",
            "model_args.xtts_checkpoint",
            "model_to_train",
        ],
    ),
    (
        "audio is brought to the model's own rates",
        &[
            "audio.dvae_sample_rate",
            "audio.output_sample_rate",
            "model_args.input_sample_rate",
            "model_args.output_sample_rate",
        ],
    ),
    (
        "the loss has these weights, 0.01 and 1, in any case",
        &["model_args.gpt_loss_mel_ce_weight", "model_args.gpt_loss_text_ce_weight"],
    ),
    (
        "the piece that conditions a clip has 3 to 6 seconds, as there",
        &["model_args.max_conditioning_length", "model_args.min_conditioning_length"],
    ),
    (
        "`xtts: {mask_prompt: …}` says it, and is on unless it says otherwise",
        &["model_args.gpt_use_masking_gt_prompt_approach"],
    ),
    ("clips that cannot be used are named, each with its reason", &["model_args.debug_loading_failures"]),
    (
        "texts of more than 200 ids, its own limit, are left out, each by name",
        &["model_args.max_text_length"],
    ),
    (
        "clips are read from data.dir: give the folder with the metadata file (--data DIR)",
        &["speakers", "train_csv", "continue_run"],
    ),
    (
        "held-out clips are chosen as data.validation says, and validated in the run's own batches",
        &[
            "eval_csv",
            "eval_split_max_size",
            "eval_split_size",
            "num_eval_loader_workers",
            "print_eval",
            "run_eval",
            "run_eval_steps",
            "target_loss",
            "test_delay_epochs",
        ],
    ),
    (
        "texts are cleaned and spelled as the model's tokenizer does it, by their language",
        &[
            "add_blank",
            "characters",
            "compute_input_seq_cache",
            "enable_eos_bos_chars",
            "language",
            "languages",
            "phoneme_cache_path",
            "phoneme_language",
            "phonemizer",
            "text_cleaner",
            "use_phonemes",
        ],
    ),
    (
        "it says how audio is generated, which trains nothing; `ambitus say` and `samples:` have settings of their own",
        &[
            "_supports_cloning",
            "gpt_cond_chunk_len",
            "gpt_cond_len",
            "length_penalty",
            "max_ref_len",
            "model_args.enable_redaction",
            "model_args.gpt_batch_size",
            "model_args.kv_cache",
            "num_gpt_outputs",
            "repetition_penalty",
            "sound_norm_refs",
            "temperature",
            "test_sentences",
            "test_sentences_file",
            "top_k",
            "top_p",
        ],
    ),
    (
        "every clip is trained on once an epoch, in an order that follows from the seed, in batches by length",
        &[
            "batch_group_size",
            "drop_last",
            "language_weighted_sampler_alpha",
            "length_weighted_sampler_alpha",
            "shuffle",
            "speaker_weighted_sampler_alpha",
            "start_by_longest",
            "use_language_weighted_sampler",
            "use_length_weighted_sampler",
            "use_speaker_weighted_sampler",
            "weighted_loss_attrs",
            "weighted_loss_multipliers",
        ],
    ),
    (
        "this trainer never reads it",
        &[
            "compute_energy",
            "compute_f0",
            "compute_linear_spec",
            "loss_masking",
            "max_audio_len",
            "max_text_len",
            "min_audio_len",
            "min_text_len",
            "precompute_num_workers",
            "use_noise_augment",
        ],
    ),
    (
        LOGS,
        &[
            "dashboard_logger",
            "log_model_step",
            "logger_uri",
            "model_param_stats",
            "plot_step",
            "print_step",
            "run_description",
            "wandb_entity",
        ],
    ),
    (
        "checkpoints are whole and the best by validation is kept",
        &["save_all_best", "save_best_after", "save_checkpoints", "save_on_interrupt"],
    ),
    (
        "the back end is not PyTorch's, and fp32 products are fp32",
        &["allow_tf32", "cudnn_benchmark", "cudnn_deterministic", "cudnn_enable", "disable_shared_memory"],
    ),
    ("fp16 has its loss scale in any case", &["use_grad_scaler"]),
    (
        "how processes find each other is the launcher's matter, not a recipe's",
        &["distributed_backend", "distributed_url"],
    ),
];

/// What it does where keys are absent, as far as an absent key of a recipe means something else.
const ABSENT: &[Absent] = &[
    Absent { keys: &["lr", "learning_rate"], means: Means::Line("learning_rate", "5e-6") },
    Absent { keys: &["warm_up"], means: Means::Line("warmup", "0") },
    Absent { keys: &["min_seconds"], means: Means::Line("data.min_seconds", "0.5") },
    Absent {
        keys: &["grad_accum_steps", "grad_acumm"],
        means: Means::Note(
            "batch",
            "config.json does not say it, for it is given where the trainer is started: if it was, write `batch:` as that many times \
             more clips",
        ),
    },
];

#[cfg(test)]
mod tests;
