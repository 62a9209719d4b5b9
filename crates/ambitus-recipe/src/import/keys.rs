//! Every key that is known: which of ours it says ([`Known::Judged`], in [`super::judge`]), or why it changes nothing here.
//!
//! The names are accelerate's (top level, `fsdp_config`, `parallelism_config` and the flags of `accelerate launch`),
//! transformers' TrainingArguments of 4.x and 5.x, and those of official trainers of
//! families, of Parler-TTS and of Coqui. Keys of a section stand as `section.key`, those of `fsdp_config` without their prefix.

/// What a known key is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Known {
    /// It may say something: the name under which it is judged.
    Judged(&'static str),
    /// It changes nothing here, because of this.
    Nothing(&'static str),
}

/// Maps whose keys are read one by one, and the name of the section; others are one key.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("fsdp_config", "fsdp"),
    ("parallelism_config", "parallel"),
    ("accelerator_config", "accelerator"),
    ("datasets", "datasets"),
    ("optim", "optim"),
    ("ckpts", "ckpts"),
    ("model", "model"),
    ("model.arch", "arch"),
];

/// Names of judged keys, and under which one each is judged.
const JUDGED: &[(&str, &[&str])] = &[
    // Where and over how many.
    ("distributed_type", &["distributed_type"]),
    ("num_processes", &["num_processes"]),
    ("nproc_per_node", &["nproc_per_node"]),
    ("num_machines", &["num_machines", "nnodes"]),
    ("use_cpu", &["use_cpu", "no_cuda", "cpu"]),
    ("compute_environment", &["compute_environment"]),
    ("parallel.dp_replicate_size", &["parallel.dp_replicate_size"]),
    ("parallel.dp_shard_size", &["parallel.dp_shard_size"]),
    ("model_parallel", &["parallel.tp_size", "parallel.cp_size", "parallel.sp_size", "tp_config"]),
    ("deepspeed", &["deepspeed", "use_deepspeed"]),
    ("deepspeed_config", &["deepspeed_config"]),
    // Of DeepSpeed's own file.
    ("zero", &["zero_optimization"]),
    ("zero_batch", &["train_micro_batch_size_per_gpu"]),
    ("megatron", &["megatron_lm_config", "use_megatron_lm"]),
    ("use_fsdp", &["use_fsdp"]),
    ("multi_gpu", &["multi_gpu"]),
    // Sharding.
    ("fsdp", &["fsdp"]),
    ("fsdp_config", &["fsdp_config"]),
    ("accelerator_config", &["accelerator_config"]),
    ("parallelism_config", &["parallelism_config"]),
    ("config_file", &["config_file"]),
    ("fsdp.version", &["fsdp.version"]),
    ("fsdp.sharding_strategy", &["fsdp.sharding_strategy"]),
    ("fsdp.reshard_after_forward", &["fsdp.reshard_after_forward"]),
    ("fsdp.auto_wrap_policy", &["fsdp.auto_wrap_policy"]),
    ("fsdp.min_num_params", &["fsdp.min_num_params"]),
    ("fsdp.transformer_layer_cls_to_wrap", &["fsdp.transformer_layer_cls_to_wrap"]),
    ("fsdp.backward_prefetch", &["fsdp.backward_prefetch", "fsdp.backward_prefetch_policy"]),
    ("fsdp.forward_prefetch", &["fsdp.forward_prefetch"]),
    ("fsdp.offload_params", &["fsdp.offload_params"]),
    ("fsdp.state_dict_type", &["fsdp.state_dict_type"]),
    ("fsdp.activation_checkpointing", &["fsdp.activation_checkpointing"]),
    ("fsdp.activation_checkpointing_offload", &["fsdp.activation_checkpointing_offload"]),
    ("fsdp.cpu_ram_efficient_loading", &["fsdp.cpu_ram_efficient_loading"]),
    ("fsdp.sync_module_states", &["fsdp.sync_module_states"]),
    ("fsdp.ignored_modules", &["fsdp.ignored_modules"]),
    // Numbers.
    ("mixed_precision", &["mixed_precision"]),
    ("fp16", &["fp16"]),
    ("bf16", &["bf16"]),
    ("precision", &["precision", "dtype", "torch_dtype", "autocast_dtype"]),
    // Batch.
    (
        "per_device",
        &["per_device_train_batch_size", "per_gpu_train_batch_size", "batch_size", "batch_size_per_gpu"],
    ),
    ("batch_size_type", &["batch_size_type"]),
    ("max_samples", &["max_samples"]),
    ("accumulation", &["gradient_accumulation_steps", "grad_accumulation_steps", "grad_accum_steps"]),
    ("split_batches", &["accelerator.split_batches", "split_batches"]),
    // Training.
    ("epochs", &["num_train_epochs", "epochs"]),
    ("max_steps", &["max_steps"]),
    ("learning_rate", &["learning_rate", "lr"]),
    ("lr_scheduler_type", &["lr_scheduler_type"]),
    ("lr_scheduler_kwargs", &["lr_scheduler_kwargs"]),
    ("warmup_steps", &["warmup_steps", "num_warmup_updates"]),
    ("warmup_ratio", &["warmup_ratio"]),
    ("optim", &["optim"]),
    ("bnb_optimizer", &["bnb_optimizer"]),
    ("adafactor", &["adafactor"]),
    ("weight_decay", &["weight_decay"]),
    ("adam_beta1", &["adam_beta1"]),
    ("adam_beta2", &["adam_beta2"]),
    ("adam_epsilon", &["adam_epsilon"]),
    ("max_grad_norm", &["max_grad_norm"]),
    ("gradient_checkpointing", &["gradient_checkpointing", "checkpoint_activations"]),
    ("seed", &["seed"]),
    ("label_smoothing_factor", &["label_smoothing_factor"]),
    ("neftune_noise_alpha", &["neftune_noise_alpha"]),
    // Files and rhythm.
    ("output_dir", &["output_dir", "save_folder"]),
    ("save_strategy", &["save_strategy"]),
    ("save_steps", &["save_steps", "save_per_updates"]),
    ("save_total_limit", &["save_total_limit", "keep_last_n_checkpoints"]),
    ("eval_strategy", &["eval_strategy", "evaluation_strategy"]),
    ("eval_steps", &["eval_steps"]),
    ("max_seconds", &["max_duration_in_seconds"]),
    ("min_seconds", &["min_duration_in_seconds"]),
    ("model_name", &["model_name", "model_name_or_path"]),
    ("dataset_name", &["TTS_dataset", "train_dataset_name", "dataset_name", "datasets.name"]),
];

/// Why keys change nothing, and which.
const NOTHING: &[(&str, &[&str])] = &[
    (
        "it is for TPUs only",
        &[
            "downcast_bf16",
            "tpu_env",
            "tpu_use_cluster",
            "tpu_use_sudo",
            "tpu_name",
            "tpu_zone",
            "tpu_vm",
            "tpu",
            "tpu_num_cores",
            "tpu_metrics_debug",
            "commands",
            "command_file",
            "fsdp.xla",
            "fsdp.xla_fsdp_v2",
            "fsdp.xla_fsdp_grad_ckpt",
            "fsdp.xla_fsdp_settings",
        ],
    ),
    (
        "it is loader threads, not data parallel: clips are prepared once and read ahead inside the memory that the plan counts",
        &[
            "dataloader_num_workers",
            "dataloader_prefetch_factor",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "num_workers",
            "preprocessing_num_workers",
            "num_loader_workers",
        ],
    ),
    (
        "how processes find each other is the launcher's matter, not a recipe's",
        &[
            "rdzv_backend",
            "rdzv_endpoint",
            "rdzv_id",
            "same_network",
            "machine_rank",
            "node_rank",
            "main_process_ip",
            "main_process_port",
            "master_addr",
            "master_port",
            "mpirun_config",
            "local_rank",
            "ddp_backend",
            "ddp_timeout",
            "standalone",
        ],
    ),
    (
        "which GPUs are used is chosen where the run is started",
        &["gpu_ids", "_n_gpu", "num_cpu_threads_per_process"],
    ),
    ("it names a Python function for notebooks and TPUs", &["main_training_function"]),
    ("it checks shapes while training; here no shape depends on data", &["debug"]),
    ("it binds processes to cores, which changes no number and no byte", &["enable_cpu_affinity"]),
    (
        "parameters keep their names, and frozen ones may stand beside trained ones, in any case",
        &["fsdp.use_orig_params"],
    ),
    ("the plan bounds what is gathered at once, by unit and slot", &["fsdp.limit_all_gathers"]),
    (
        "the step is compiled and its operations fused in any case",
        &[
            "dynamo_config",
            "dynamo_backend",
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "torchdynamo",
            "jit_mode_eval",
            "use_ipex",
            "ipex_config",
            "ipex_plugin",
        ],
    ),
    ("there is no fp8; it counts for mixed_precision: fp8 only", &["fp8_config", "fp8_backend"]),
    (
        "gradients are summed where the plan put them, without buckets of their own",
        &[
            "ddp_bucket_cap_mb",
            "ddp_find_unused_parameters",
            "ddp_broadcast_buffers",
            "gradient_as_bucket_view",
        ],
    ),
    (
        "the loss is fused with the head in any case: logits are never whole in memory",
        &["use_liger_kernel", "use_liger", "liger_kernel_config"],
    ),
    ("recomputing is planned, value by value, not by hooks of autograd", &["gradient_checkpointing_kwargs"]),
    (
        "the largest micro-batch is known from the plan: nothing is tried until it fails, and the update stays the same",
        &["auto_find_batch_size"],
    ),
    ("the arena is allocated once; there is no allocator's cache to empty", &["torch_empty_cache_steps"]),
    ("TF32 is never used: fp32 products are fp32", &["tf32"]),
    (
        "evaluation computes in the run's precision, in the same micro-batches, inside the same plan",
        &[
            "bf16_full_eval",
            "fp16_full_eval",
            "per_device_eval_batch_size",
            "per_gpu_eval_batch_size",
            "eval_batch_size",
            "eval_accumulation_steps",
            "eval_delay",
            "eval_on_start",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "batch_eval_metrics",
            "prediction_loss_only",
            "include_for_metrics",
            "include_inputs_for_metrics",
            "predict_with_generate",
            "generation_max_length",
            "generation_num_beams",
            "generation_config",
            "do_eval",
            "do_predict",
            "past_index",
        ],
    ),
    (
        "an update's clips are cut into micro-batches by their real lengths, and padding is never computed with",
        &[
            "group_by_length",
            "train_sampling_strategy",
            "length_column_name",
            "pad_to_max_length",
            "pad_to_multiple_of",
            "sortish_sampler",
            "remove_unused_columns",
            "label_names",
        ],
    ),
    (
        "every clip is trained on once an epoch, and the loss is the mean over the whole update on every rank",
        &[
            "dataloader_drop_last",
            "dispatch_batches",
            "accelerator.dispatch_batches",
            "accelerator.even_batches",
            "accelerator.use_seedable_sampler",
            "accelerator.non_blocking",
            "accelerator.gradient_accumulation_kwargs",
            "accelerator.use_configured_state",
            "average_tokens_across_devices",
            "use_cache",
        ],
    ),
    (
        "the order of clips follows from seed and epoch alone",
        &["data_seed", "full_determinism", "ignore_data_skip"],
    ),
    (
        "every update is in metrics.jsonl, and nothing is sent anywhere",
        &[
            "logging_steps",
            "logging_strategy",
            "logging_first_step",
            "logging_dir",
            "logging_nan_inf_filter",
            "log_level",
            "log_level_replica",
            "log_on_each_node",
            "disable_tqdm",
            "report_to",
            "run_name",
            "project_name",
            "project",
            "trackio_space_id",
            "include_tokens_per_second",
            "include_num_input_tokens_seen",
            "skip_memory_metrics",
            "logger",
            "wandb_project",
            "wandb_run_name",
            "wandb_resume_id",
            "log_samples",
            "push_to_hub",
            "push_to_hub_model_id",
            "push_to_hub_organization",
            "push_to_hub_token",
            "hub_model_id",
            "hub_strategy",
            "hub_token",
            "hub_private_repo",
            "hub_always_push",
            "hub_revision",
        ],
    ),
    (
        "checkpoints are whole (weights, moments, counters) and the best by validation is kept; `ambitus export` writes what \
         the original loads",
        &[
            "save_safetensors",
            "save_only_model",
            "save_on_each_node",
            "load_best_model_at_end",
            "metric_for_best_model",
            "greater_is_better",
            "last_per_updates",
            "restore_callback_states_from_checkpoint",
            "enable_jit_checkpoint",
            "overwrite_output_dir",
        ],
    ),
    ("where checkpoints go is run_dir", &["ckpts.save_dir"]),
    ("a run is resumed with `ambitus resume RUN`", &["resume_from_checkpoint"]),
    ("train is what `ambitus train` does", &["do_train"]),
    ("it belongs to another optimizer", &["optim_args", "optim_target_modules"]),
    (
        "it belongs to a launcher or back end that is not used here",
        &[
            "fp16_backend",
            "fp16_opt_level",
            "half_precision_backend",
            "sharded_ddp",
            "mp_parameters",
            "ray_scope",
            "use_mps_device",
            "use_legacy_prediction_loop",
            "module",
            "no_python",
            "quiet",
            "m",
            "launcher",
            "parallel.cp_backend",
            "parallel.cp_comm_strategy",
            "parallel.sp_backend",
            "parallel.sp_seq_length",
            "parallel.sp_seq_length_is_variable",
            "parallel.sp_attn_implementation",
            "zero_stage",
        ],
    ),
    ("the sizes of parallelism_config say it", &["use_parallelism_config"]),
    ("finetune/train.py reads it and never uses it", &["pad_token", "number_processes"]),
    (
        "the model's shape is read from its own folder (model.dir)",
        &[
            "model.name",
            "model.backbone",
            "arch.dim",
            "arch.depth",
            "arch.heads",
            "arch.ff_mult",
            "arch.text_dim",
            "arch.text_mask_padding",
            "arch.qk_norm",
            "arch.conv_layers",
            "arch.pe_attn_head",
            "arch.attn_backend",
            "arch.attn_mask_enabled",
            "model.tokenizer",
            "model.tokenizer_path",
            "model.mel_spec",
            "model.vocoder",
            "model.arch",
            "exp_name",
            "attn_implementation",
            "vocab_size",
        ],
    ),
    ("it configures hydra, which is not used", &["hydra"]),
    (
        "there is no Parler-TTS yet",
        &[
            "freeze_text_encoder",
            "save_to_disk",
            "temporary_save_to_disk",
            "save_codec_steps",
            "audio_encoder_per_device_batch_size",
            "description_column_name",
            "prompt_column_name",
            "target_audio_column_name",
            "feature_extractor_name",
            "description_tokenizer_name",
            "prompt_tokenizer_name",
            "preprocessing_only",
        ],
    ),
];

/// Switches among the keys that change nothing: another value is a mistake all the same. Without their prefix.
const SWITCHES: &[&str] = &[
    "use_orig_params",
    "limit_all_gathers",
    "downcast_bf16",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "same_network",
    "enable_cpu_affinity",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_drop_last",
    "auto_find_batch_size",
    "group_by_length",
    "bf16_full_eval",
    "fp16_full_eval",
    "use_liger_kernel",
    "load_best_model_at_end",
    "push_to_hub",
    "tf32",
];

/// Returns whether a key by its path is one of the switches that change nothing.
pub(super) fn is_switch(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    SWITCHES.contains(&name.strip_prefix("fsdp_").unwrap_or(name))
}

/// Returns whether a key by its path is a section.
pub(super) fn is_section(path: &str) -> bool {
    SECTIONS.iter().any(|(name, _)| *name == path)
}

/// Returns a key by its sections and name, as far as it is known.
pub(super) fn find(section: &str, key: &str) -> Option<Known> {
    let unprefixed = |key: &str, prefix: &str| key.strip_prefix(prefix).unwrap_or(key).to_owned();
    let tries = match section {
        // A launcher's flags carry the section in their name.
        "" => match key.strip_prefix("parallelism_config_") {
            Some(size) => vec![format!("parallel.{size}")],
            None => vec![key.to_owned(), format!("fsdp.{}", unprefixed(key, "fsdp_"))],
        },
        "fsdp" => vec![format!("fsdp.{}", unprefixed(key, "fsdp_"))],
        "parallel" => vec![format!("parallel.{}", unprefixed(key, "parallelism_config_"))],
        "accelerator" => vec![format!("accelerator.{key}")],
        _ => vec![format!("{section}.{key}"), key.to_owned()],
    };
    let known = |name: &String| {
        let has = |(_, names): &&(&str, &[&str])| names.contains(&name.as_str());
        let judged = JUDGED.iter().find(has).map(|(id, _)| Known::Judged(id));
        judged.or_else(|| NOTHING.iter().find(has).map(|(why, _)| Known::Nothing(why)))
    };
    tries.iter().find_map(known)
}

/// Returns the known key that is nearest to one of a section, as that section writes it.
pub(super) fn nearest(section: &str, key: &str) -> Option<String> {
    let names = JUDGED.iter().chain(NOTHING).flat_map(|(_, names)| names.iter().copied());
    match section {
        "fsdp" => {
            let inner = names.filter_map(|n| n.strip_prefix("fsdp."));
            crate::near::nearest(key.strip_prefix("fsdp_").unwrap_or(key), inner).map(|n| format!("fsdp_{n}"))
        }
        _ => {
            let flat: Vec<String> = names
                .map(|n| match n.split_once('.') {
                    Some(("fsdp", rest)) => format!("fsdp_{rest}"),
                    Some((_, rest)) => rest.to_owned(),
                    None => n.to_owned(),
                })
                .collect();
            crate::near::nearest(key, flat.iter().map(String::as_str)).map(str::to_owned)
        }
    }
}

/// Returns every name, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    JUDGED.iter().chain(NOTHING).flat_map(|(_, names)| names.iter().copied())
}
