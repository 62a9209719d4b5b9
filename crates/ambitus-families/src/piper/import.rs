//! Settings of Piper's two trainers, for `ambitus import`: both are PyTorch Lightning's, of two generations.

use ambitus_recipe::import::{Absent, LOGS, Lightning, Means, Trainer};

/// piper1-gpl (`python -m piper.train fit`): flags, Lightning's `config.yaml`, or the `hparams.yaml` beside its checkpoints.
pub(super) const TRAINER: Trainer = Trainer {
    signs: &[
        "betas_d",
        "data.espeak_voice",
        "data.phoneme_type",
        "data.voice_name",
        "data.vowel_clusters",
        "learning_rate_d",
        "lr_decay_d",
        "model.betas_d",
        "model.learning_rate_d",
        "model.lr_decay_d",
        "model.mos_metric",
        "model.use_mrd",
        "model.vocoder_warmstart_ckpt",
        "model.warmstart_ckpt",
        "mos_metric",
        "use_mrd",
        "vocoder_warmstart_ckpt",
    ],
    has_length: true,
    keys: KEYS,
    nothing: NOTHING,
    absent: &[Absent { keys: &["data.trim_silence"], means: Means::Note("data.dir", TRIMS) }],
    notes: LENGTHS,
    section: Some(&super::keys::SECTION),
    lightning: Some(Lightning {
        manual: true,
        clips: Some(32),
        epochs: None,
        adamw: (2e-4, [0.8, 0.99]),
        other: Some(("d", 1e-4, [0.5, 0.9])),
        gamma: None,
        validation: 0.1,
        tf32: true,
        stated: STATED,
        lost: LOST,
        scratch: &[],
        parts: Some(("piper.warm_start", "vocoder")),
        speakers: Some("piper.speakers"),
        words: &[("data.dataset_type", "phoneme_ids", "piper.phoneme_ids")],
    }),
    ..Trainer::PLAIN
};

/// rhasspy/piper (`python3 -m piper_train`): flags, or its `hparams.yaml`. It lets Lightning step optimizers and schedules.
pub(super) const OLDER: Trainer = Trainer {
    signs: &[
        "checkpoint_epochs",
        "max_phoneme_ids",
        "num_test_examples",
        "quality",
        "resume_from_single_speaker_checkpoint",
        "sample_bytes",
    ],
    has_length: true,
    keys: OLDER_KEYS,
    nothing: OLDER_NOTHING,
    notes: LENGTHS,
    section: Some(&super::keys::SECTION),
    lightning: Some(Lightning {
        manual: false,
        clips: None,
        epochs: Some(1000),
        adamw: (2e-4, [0.8, 0.99]),
        other: None,
        gamma: Some(0.999_875),
        validation: 0.1,
        tf32: false,
        stated: STATED,
        lost: OLDER_LOST,
        scratch: &[("quality", "piper.quality")],
        parts: None,
        speakers: Some("piper.speakers"),
        words: &[],
    }),
    ..Trainer::PLAIN
};

const TRIMS: &str = "silence before and after speech is cut to a quarter of a second there, and audio is used as it is here: cut it \
                     beforehand if it is long";

/// What both do.
const LENGTHS: &[(&str, &str)] = &[(
    "data.max_seconds",
    "its trainer has no limit in seconds; here clips of less than 0.3 and more than 30 seconds are left out, each by name, unless \
     `data: {min_seconds: …, max_seconds: …}` says otherwise",
)];

/// Keys that say something, and under which name they are judged.
const KEYS: &[(&str, &[&str])] = &[
    ("config_file", &["config"]),
    ("per_device", &["batch_size", "data.batch_size", "model.batch_size"]),
    ("lightning.accelerator", &["trainer.accelerator"]),
    ("lightning.accumulated", &["trainer.accumulate_grad_batches"]),
    ("lightning.begun", &["model.warmstart_ckpt", "warmstart_ckpt"]),
    ("lightning.betas", &["betas", "model.betas"]),
    ("lightning.betas.other", &["betas_d", "model.betas_d"]),
    ("lightning.clip", &["trainer.gradient_clip_val"]),
    ("lightning.clip.how", &["trainer.gradient_clip_algorithm"]),
    ("lightning.continued", &["ckpt_path"]),
    ("lightning.data", &["data.csv_path"]),
    ("lightning.devices", &["trainer.devices"]),
    ("lightning.epochs", &["trainer.max_epochs"]),
    ("lightning.nodes", &["trainer.num_nodes"]),
    ("lightning.parts", &["model.vocoder_warmstart_ckpt", "vocoder_warmstart_ckpt"]),
    ("lightning.precision", &["trainer.precision"]),
    ("lightning.rate", &["learning_rate", "model.learning_rate"]),
    ("lightning.rate.other", &["learning_rate_d", "model.learning_rate_d"]),
    ("lightning.seed", &["seed_everything"]),
    ("lightning.speakers", &["data.num_speakers", "model.num_speakers", "num_speakers"]),
    ("lightning.steps", &["trainer.max_steps"]),
    ("lightning.strategy", &["trainer.strategy"]),
    ("lightning.validation", &["data.validation_split"]),
    ("adam_epsilon", &["eps", "model.eps"]),
];

/// Those of the older trainer.
const OLDER_KEYS: &[(&str, &[&str])] = &[
    ("per_device", &["batch_size"]),
    ("accumulation", &["accumulate_grad_batches"]),
    ("lightning.accelerator", &["accelerator"]),
    ("lightning.betas", &["betas"]),
    ("lightning.clip", &["gradient_clip_val"]),
    ("lightning.clip.how", &["gradient_clip_algorithm"]),
    ("lightning.continued", &["resume_from_checkpoint"]),
    ("lightning.data", &["dataset_dir"]),
    ("lightning.devices", &["devices", "gpus"]),
    ("lightning.epochs", &["max_epochs"]),
    ("lightning.gamma", &["lr_decay"]),
    ("lightning.longest", &["max_phoneme_ids"]),
    ("lightning.nodes", &["num_nodes"]),
    ("lightning.precision", &["precision"]),
    ("lightning.rate", &["learning_rate"]),
    ("lightning.single", &["resume_from_single_speaker_checkpoint"]),
    ("lightning.speakers", &["num_speakers"]),
    ("lightning.steps", &["max_steps"]),
    ("lightning.strategy", &["strategy"]),
    ("lightning.validation", &["validation_split"]),
    ("adam_epsilon", &["eps"]),
];

/// What the options in a checkpoint say of its losses and of dropout, and what they are where nothing says them.
const STATED: &[(&str, f64)] = &[
    ("c_kl", 1.0),
    ("c_mel", 45.0),
    ("model.c_kl", 1.0),
    ("model.c_mel", 45.0),
    ("model.p_dropout", 0.1),
    ("model.segment_size", 8192.0),
    ("p_dropout", 0.1),
    ("segment_size", 8192.0),
];

const SPECTRAL: &str = "discriminators have weight norm, none of them spectral norm";
const RESOLUTIONS: &str = "there are the discriminators of periods and of scale, none of resolutions";
const SHARE: &str = "all of the clips are trained on in an epoch: put fewer into the data folder";

/// Keys that, where they are on, do what is not done here.
const LOST: &[(&str, &str)] = &[
    ("data.trim_silence", TRIMS),
    ("model.use_mrd", RESOLUTIONS),
    ("model.use_spectral_norm", SPECTRAL),
    ("trainer.max_time", "a run's length is said in updates or epochs"),
    ("trainer.overfit_batches", SHARE),
    ("use_mrd", RESOLUTIONS),
    ("use_spectral_norm", SPECTRAL),
];

/// Those of the older trainer.
const OLDER_LOST: &[(&str, &str)] = &[
    ("auto_scale_batch_size", "it never tunes, and the batch is what batch_size says"),
    ("max_time", "a run's length is said in updates or epochs"),
    ("overfit_batches", SHARE),
    ("use_spectral_norm", SPECTRAL),
];

const SHAPE: &str =
    "the model's shape is read from its own folder (model.dir); of a new voice `piper: {quality: …}` says it";
const UNREAD: &str = "its trainer never reads it";
const RHYTHM: &str =
    "how often it validates and saves is a number of updates here: `validate_every:` and `save_every:`";
const FOLDER: &str = "a run's folder is run_dir, and it holds the newest checkpoints and the best";
const LISTENED: &str =
    "no clip is held out to be listened to: `samples:` speaks while it trains, and scores nothing";
const LOADER: &str = "it is loader threads: clips are read ahead inside the memory that the plan counts";
const FAULTS: &str = "it is for finding faults in its trainer";
const KERNELS: &str =
    "the same recipe and seed give the same bits in any case, and kernels are chosen by the back end";
const ORDER: &str = "the order of clips follows from the seed and the epoch, on any number of ranks";
const PLUGINS: &str = "ranks, precision and files are this program's own, without plugins of Lightning";
const NORMS: &str = "there is no batch norm to be brought together over ranks";
const EVALUATED: &str = "validation reads all held-out clips, and nothing else is evaluated";
const LEAST: &str = "a run has the length that the recipe says, no less";

/// Keys that change nothing here, and why.
const NOTHING: &[(&str, &[&str])] = &[
    (
        SHAPE,
        &[
            "data.filter_length",
            "data.hop_length",
            "data.num_symbols",
            "data.sample_rate",
            "data.segment_size",
            "data.win_length",
            "filter_channels",
            "filter_length",
            "gin_channels",
            "hidden_channels",
            "hop_length",
            "inter_channels",
            "kernel_size",
            "mel_channels",
            "mel_fmax",
            "mel_fmin",
            "model.filter_channels",
            "model.filter_length",
            "model.gin_channels",
            "model.hidden_channels",
            "model.hop_length",
            "model.inter_channels",
            "model.kernel_size",
            "model.mel_channels",
            "model.mel_fmax",
            "model.mel_fmin",
            "model.n_heads",
            "model.n_layers",
            "model.n_layers_q",
            "model.num_symbols",
            "model.resblock",
            "model.resblock_dilation_sizes",
            "model.resblock_kernel_sizes",
            "model.sample_rate",
            "model.upsample_initial_channel",
            "model.upsample_kernel_sizes",
            "model.upsample_rates",
            "model.use_sdp",
            "model.win_length",
            "n_heads",
            "n_layers",
            "n_layers_q",
            "num_symbols",
            "resblock",
            "resblock_dilation_sizes",
            "resblock_kernel_sizes",
            "sample_rate",
            "upsample_initial_channel",
            "upsample_kernel_sizes",
            "upsample_rates",
            "use_sdp",
            "win_length",
        ],
    ),
    (
        "its trainer makes schedules of it and never steps them: the rates stay",
        &["lr_decay", "lr_decay_d", "model.lr_decay", "model.lr_decay_d"],
    ),
    (
        UNREAD,
        &[
            "_class_path",
            "_instantiator",
            "dataset",
            "grad_clip",
            "init_lr_ratio",
            "lr_scheduler.",
            "lr_scheduler",
            "model.dataset",
            "model.grad_clip",
            "model.init_lr_ratio",
            "model.warmup_epochs",
            "optimizer",
            "optimizer.",
            "warmup_epochs",
        ],
    ),
    (LISTENED, &["data.num_test_examples", "model.mos_metric", "mos_metric"]),
    (
        "how texts become phonemes, and phonemes ids, is read from config.json in the model's folder (model.dir)",
        &["data.espeak_voice", "data.phoneme_type", "data.phonemes_path", "data.vowel_clusters"],
    ),
    ("config.json is read from the model's folder, and `ambitus export` writes it", &["data.config_path"]),
    ("a voice has the name of the folder that it is exported to", &["data.voice_name"]),
    ("prepared clips are kept in data.cache, in a form of its own", &["data.cache_dir"]),
    (
        "audio is looked for in the data folder, as the metadata names it",
        &["data.alignments_dir", "data.audio_dir"],
    ),
    (
        "it says how silence is cut, which is not done here",
        &["data.keep_seconds_after_silence", "data.keep_seconds_before_silence"],
    ),
    (LOADER, &["data.num_workers"]),
    (
        RHYTHM,
        &[
            "trainer.check_val_every_n_epoch",
            "trainer.val_check_interval",
            "trainer.callbacks",
            "trainer.callbacks.",
        ],
    ),
    (FOLDER, &["trainer.default_root_dir", "trainer.enable_checkpointing"]),
    (
        LOGS,
        &[
            "trainer.enable_autolog_hparams",
            "trainer.enable_model_summary",
            "trainer.enable_progress_bar",
            "trainer.log_every_n_steps",
            "trainer.logger",
            "trainer.logger.",
            "trainer.model_registry",
            "trainer.profiler",
        ],
    ),
    (
        FAULTS,
        &[
            "trainer.barebones",
            "trainer.detect_anomaly",
            "trainer.fast_dev_run",
            "trainer.num_sanity_val_steps",
        ],
    ),
    (KERNELS, &["trainer.benchmark", "trainer.deterministic"]),
    (ORDER, &["trainer.reload_dataloaders_every_n_epochs", "trainer.use_distributed_sampler"]),
    (PLUGINS, &["trainer.plugins"]),
    (NORMS, &["trainer.sync_batchnorm"]),
    (
        EVALUATED,
        &[
            "trainer.inference_mode",
            "trainer.limit_predict_batches",
            "trainer.limit_test_batches",
            "trainer.limit_val_batches",
        ],
    ),
    (SHARE, &["trainer.limit_train_batches"]),
    (LEAST, &["trainer.min_epochs", "trainer.min_steps"]),
    ("a checkpoint is read as plain values, and no code in it is run", &["weights_only"]),
];

/// Those of the older trainer.
const OLDER_NOTHING: &[(&str, &[&str])] = &[
    (
        SHAPE,
        &[
            "channels",
            "filter_channels",
            "filter_length",
            "gin_channels",
            "hidden_channels",
            "hop_length",
            "inter_channels",
            "kernel_size",
            "mel_channels",
            "mel_fmax",
            "mel_fmin",
            "n_heads",
            "n_layers",
            "n_layers_q",
            "num_symbols",
            "resblock",
            "resblock_dilation_sizes",
            "resblock_kernel_sizes",
            "sample_bytes",
            "sample_rate",
            "upsample_initial_channel",
            "upsample_kernel_sizes",
            "upsample_rates",
            "use_sdp",
            "win_length",
        ],
    ),
    (UNREAD, &["auto_lr_find", "grad_clip", "init_lr_ratio", "warmup_epochs"]),
    ("clips are read from data.dir (--data DIR)", &["dataset"]),
    (LISTENED, &["num_test_examples"]),
    (LOADER, &["num_workers"]),
    (RHYTHM, &["check_val_every_n_epoch", "checkpoint_epochs", "val_check_interval"]),
    (FOLDER, &["default_root_dir", "enable_checkpointing", "weights_save_path"]),
    (
        LOGS,
        &[
            "enable_model_summary",
            "enable_progress_bar",
            "log_every_n_steps",
            "logger",
            "profiler",
            "track_grad_norm",
        ],
    ),
    (FAULTS, &["detect_anomaly", "fast_dev_run", "num_sanity_val_steps"]),
    (KERNELS, &["benchmark", "deterministic"]),
    (ORDER, &["multiple_trainloader_mode", "reload_dataloaders_every_n_epochs", "replace_sampler_ddp"]),
    (PLUGINS, &["plugins"]),
    ("`precision` says what is computed in", &["amp_backend", "amp_level"]),
    (NORMS, &["sync_batchnorm"]),
    (EVALUATED, &["limit_predict_batches", "limit_test_batches", "limit_val_batches", "move_metrics_to_cpu"]),
    (SHARE, &["limit_train_batches"]),
    (LEAST, &["min_epochs", "min_steps"]),
    ("which GPUs are used is chosen where the run is started", &["auto_select_gpus"]),
    ("the devices are cpu and cuda", &["ipus", "tpu_cores"]),
    ("`devices` says over how many ranks it is spread", &["num_processes"]),
];

#[cfg(test)]
mod tests;
