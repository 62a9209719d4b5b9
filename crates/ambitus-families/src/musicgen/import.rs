//! Configurations of audiocraft's training, for `ambitus import`.

use ambitus_recipe::import::{Absent, LOGS, Means, Solver, Trainer};

/// What hydra composes of `config/` for `solver=musicgen/…` (1.3.0 and later), whole or file by file, and overrides of it. Where a key is
/// absent, `config/solver/musicgen/default.yaml` says it.
pub(super) const TRAINER: Trainer = Trainer {
    signs: &[
        "classifier_free_guidance.",
        "codebooks_pattern",
        "compression_model_checkpoint",
        "conditioners.",
        "datasource.",
        "dset",
        "interleave_stereo_codebooks",
        "lm_model",
        "model/lm/model_scale",
        "optim.optimizer",
        "optim.updates_per_epoch",
        "schedule.lr_scheduler",
        "solver",
        "transformer_lm.",
    ],
    has_length: true,
    nothing: NOTHING,
    absent: ABSENT,
    notes: &[(
        "musicgen.condition_dropout",
        "its trainer drops the texts of a whole batch together; here that of each use of each clip is drawn, as often on average; and it \
         draws words and metadata anew for each use, where `musicgen: {texts: …}` says how many texts are drawn of each clip",
    )],
    section: Some(&super::keys::SECTION),
    solver: Some(Solver {
        keys: KEYS,
        shares: SHARES,
        switches: SWITCHES,
        lost: LOST,
        length: (200, 2000),
        decay: 0.99,
    }),
    ..Trainer::PLAIN
};

/// Keys that say something, and under which name they are judged.
const KEYS: &[(&str, &[&str])] = &[
    ("solver.file", &["solver"]),
    ("solver.continued", &["continue_from"]),
    ("solver.optimizer", &["optim.optimizer"]),
    ("solver.rate", &["optim.lr"]),
    ("solver.betas", &["optim.adam.betas"]),
    ("adam_epsilon", &["optim.adam.eps"]),
    ("max_grad_norm", &["optim.max_norm"]),
    ("solver.epochs", &["optim.epochs"]),
    ("solver.updates", &["optim.updates_per_epoch"]),
    ("solver.average", &["optim.ema.use"]),
    ("solver.average.decay", &["optim.ema.decay"]),
    ("solver.average.every", &["optim.ema.updates"]),
    ("solver.schedule", &["schedule.lr_scheduler"]),
    ("solver.cast", &["autocast"]),
    ("solver.cast.type", &["autocast_dtype"]),
    ("solver.type", &["dtype"]),
    ("solver.sharded", &["fsdp.use"]),
    ("solver.sharded.type", &["fsdp.param_dtype"]),
    ("solver.sharded.strategy", &["fsdp.sharding_strategy"]),
    ("solver.batch", &["dataset.batch_size"]),
    ("max_seconds", &["dataset.segment_duration"]),
    ("dataset_name", &["datasource.train"]),
    ("solver.recompute", &["transformer_lm.checkpointing"]),
    ("solver.keep", &["checkpoint.keep_last"]),
];

/// Keys whose values are shares, and which key of the recipe each is.
const SHARES: &[(&str, &str)] = &[
    ("classifier_free_guidance.training_dropout", "musicgen.condition_dropout"),
    ("conditioners.description.t5.word_dropout", "musicgen.word_dropout"),
    ("dataset.train.merge_text_p", "musicgen.merge_metadata"),
    ("dataset.train.drop_desc_p", "musicgen.drop_description"),
    ("dataset.train.drop_other_p", "musicgen.keep_metadata"),
    ("transformer_lm.dropout", "dropout"),
];

/// Keys that are on or off, and which key of the recipe each is.
const SWITCHES: &[(&str, &str)] = &[
    ("dataset.sample_on_duration", "musicgen.sample_on_duration"),
    ("dataset.sample_on_weight", "musicgen.sample_on_weight"),
];

/// Keys that, where they are on, do what is not done here.
const LOST: &[(&str, &str)] = &[
    ("attribute_dropout", "the description alone conditions the model"),
    ("conditioners.description.t5.finetune", "the text encoder is frozen"),
    ("conditioners.description.t5.normalize_text", "texts are read as they are: normalise them in the data"),
    ("transformer_lm.attention_dropout", "dropout of attention's weights is not there"),
    ("transformer_lm.emb_lr", "all parameters have one rate"),
];

/// Keys that change nothing here, and why.
const NOTHING: &[(&str, &[&str])] = &[
    (
        "the model's shape is read from its own folder (model.dir)",
        &[
            "channels",
            "codebooks_pattern",
            "compression_model_n_q",
            "conditioner",
            "fuser",
            "interleave_stereo_codebooks",
            "lm_model",
            "model",
            "model/lm/model_scale",
            "transformer_lm.activation",
            "transformer_lm.bias_attn",
            "transformer_lm.bias_ff",
            "transformer_lm.bias_proj",
            "transformer_lm.card",
            "transformer_lm.causal",
            "transformer_lm.cross_attention",
            "transformer_lm.dim",
            "transformer_lm.hidden_scale",
            "transformer_lm.kv_repeat",
            "transformer_lm.layer_scale",
            "transformer_lm.n_q",
            "transformer_lm.norm",
            "transformer_lm.norm_first",
            "transformer_lm.num_heads",
            "transformer_lm.num_layers",
            "transformer_lm.past_context",
            "transformer_lm.positional_embedding",
            "transformer_lm.qk_layer_norm",
            "transformer_lm.qk_layer_norm_cross",
            "transformer_lm.xpos",
        ],
    ),
    (
        "it says how new weights are drawn, and a run begins with those of the model's folder",
        &["transformer_lm.depthwise_init", "transformer_lm.weight_init", "transformer_lm.zero_bias_init"],
    ),
    (
        "attention's kernels are chosen by the back end, and its sums are in fp32",
        &[
            "efficient_attention_backend",
            "transformer_lm.attention_as_float32",
            "transformer_lm.custom",
            "transformer_lm.memory_efficient",
        ],
    ),
    (
        "it says how music is generated, which trains nothing; `ambitus say` and `samples:` have settings of their own",
        &["classifier_free_guidance.inference_coef", "generate", "transformer_lm.two_step_cfg"],
    ),
    (
        "codec and text encoder are those of the model's folder",
        &[
            "compression_model_checkpoint",
            "conditioners.description.model",
            "conditioners.description.t5.name",
        ],
    ),
    (
        "files of any rate and number of channels are brought to the model's own",
        &["datasource.max_channels", "datasource.max_sample_rate", "sample_rate"],
    ),
    ("the folder of music is data.dir (--data DIR)", &["dset"]),
    (
        "held-out clips are chosen as data.validation says, and validated in the run's own batches",
        &[
            "datasource.evaluate",
            "datasource.generate",
            "datasource.valid",
            "dataset.evaluate",
            "dataset.generate",
            "dataset.valid",
            "evaluate",
            "metrics",
        ],
    ),
    (
        "every file has a segment once an epoch, in an order that follows from the seed",
        &[
            "dataset.num_samples",
            "dataset.return_info",
            "dataset.shuffle",
            "dataset.train.num_samples",
            "dataset.train.permutation_on_files",
            "dataset.train.return_info",
            "dataset.train.shuffle",
            "dataset.train.shuffle_seed",
        ],
    ),
    (
        "a segment lies within its file, and a shorter file is used whole: nothing is padded",
        &["dataset.min_segment_ratio", "tokens"],
    ),
    ("audio becomes codes once, and they are kept in data.cache", &["cache"]),
    (
        "the newest checkpoints and the best are kept, whole",
        &["checkpoint.keep_every_states", "checkpoint.save_every", "checkpoint.save_last"],
    ),
    (
        "gradients are summed in fp32, and a rank gathers a block at a time",
        &["fsdp.buffer_dtype", "fsdp.per_block", "fsdp.reduce_dtype", "optim.eager_sync"],
    ),
    (
        "where the average lies is planned; `offload: {ema: true}` has it wait in the host's memory",
        &["optim.ema.device"],
    ),
    (LOGS, &["logging", "tensorboard", "wandb"]),
    (
        "how processes are started is the launcher's matter, not a recipe's",
        &["dora", "mp_start_method", "slurm"],
    ),
    ("a recipe leaves the device open: say --device cuda, or plan with --card NAME", &["device"]),
    ("compute threads change no number: `threads:` says how many", &["num_threads"]),
    ("files that it names are read where they are given too", &["defaults"]),
    ("it is for finding faults in its trainer", &["benchmark_no_load", "deadlock", "profiler", "show"]),
    (
        "`ambitus train` trains, and the run's folder is its name",
        &["execute_inplace", "execute_only", "label"],
    ),
];

/// What it does where keys are absent, as far as an absent key of a recipe means something else.
const ABSENT: &[Absent] = &[
    Absent { keys: &["dataset.batch_size"], means: Means::Line("batch", "{clips: 128}") },
    Absent { keys: &["dataset.segment_duration"], means: Means::Line("data.max_seconds", "30") },
    Absent {
        keys: &["dataset.sample_on_duration"],
        means: Means::Line("musicgen.sample_on_duration", "true"),
    },
    Absent {
        keys: &["continue_from"],
        means: Means::Note(
            "model.dir",
            "a new model is trained there, from random weights: `model: {from_scratch: true}` does so; without it the folder's weights \
             are trained on",
        ),
    },
];

#[cfg(test)]
mod tests;
