"""Writes fixtures/config.json as the trainer of coqui-tts writes it, filled in as AllTalk does for ten epochs, for the tests of `import`."""

import json
from pathlib import Path

from TTS.config.shared_configs import BaseDatasetConfig
from TTS.tts.layers.xtts.trainer.gpt_trainer import GPTArgs, GPTTrainerConfig
from TTS.tts.models.xtts import XttsAudioConfig

args = GPTArgs(
    max_wav_length=242550,
    mel_norm_file="models/xtts/base/mel_stats.pth",
    dvae_checkpoint="models/xtts/base/dvae.pth",
    xtts_checkpoint="models/xtts/base/model.pth",
    tokenizer_file="models/xtts/base/vocab.json",
    gpt_num_audio_tokens=1026,
    gpt_start_audio_token=1024,
    gpt_stop_audio_token=1025,
    gpt_use_perceiver_resampler=True,
)
config = GPTTrainerConfig(
    epochs=10,
    output_path="finetune/voice/training",
    model_args=args,
    run_name="XTTS_FT",
    project_name="XTTS_trainer",
    run_description="GPT XTTS training",
    audio=XttsAudioConfig(sample_rate=22050, dvae_sample_rate=22050, output_sample_rate=24000),
    batch_size=4,
    batch_group_size=48,
    eval_batch_size=4,
    num_loader_workers=8,
    eval_split_max_size=256,
    print_step=50,
    log_model_step=100,
    save_step=1000,
    save_n_checkpoints=1,
    optimizer="AdamW",
    optimizer_wd_only_on_weights=True,
    optimizer_params={"betas": [0.9, 0.96], "eps": 1e-8, "weight_decay": 1e-2},
    lr=5e-6,
    lr_scheduler="CosineAnnealingWarmRestarts",
    lr_scheduler_params={"T_0": 2, "T_mult": 1, "eta_min": 1e-6, "last_epoch": -1},
    datasets=[BaseDatasetConfig(formatter="coqui", dataset_name="ft_dataset", path="finetune/voice", meta_file_train="metadata_train.csv", meta_file_val="metadata_eval.csv", language="en")],
)
out = Path(__file__).parent / "fixtures/config.json"
out.write_text(json.dumps(config.to_dict(), indent=1) + "\n")
