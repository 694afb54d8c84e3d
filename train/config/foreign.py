"""Keys of axolotl, Surogate and transformers' Trainer: what each means here, or why nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPELLINGS: Mapping[str, str] = {
    "model": "name_or_path",
    "revision_of_model": "revision",
    "recompute": "activation_checkpointing",
    "test_datasets": "eval_dataset_path",
    "validation_datasets": "eval_dataset_path",
    "validation_split_ratio": "eval_split",
    "adamw_beta1": "adam_beta1",
    "adamw_beta2": "adam_beta2",
    "adamw_epsilon": "adam_epsilon",
    "cosine_min_lr_ratio": "min_lr_ratio",
    "final_lr_fraction": "min_lr_ratio",
    "train_seed": "seed",
}
"""Spellings of axolotl and Surogate → the key that means the same; common ones are in Config."""
ON = frozenset({"true", "yes", "on", "1"})
OFF = frozenset({"", "none", "null", "~", "false", "no", "off", "0", "[]", "{}"})
"""Values that leave another program's feature off, as it is here."""

_LAUNCHER = "belongs to the launcher: nodes and GPUs are in hosts.yaml; leave it out here"
_VARIABLE = "is a variable of its own package: put {} into env of hosts.yaml"
_IN_FILE = "no secrets in a file; set the variable {} (env_from in hosts.yaml)"
QUANTIZED = "quantized bases are not trained here; use dtype: bfloat16"
_DATA_PARALLEL = "only data parallelism is done here; see parallel"
_OFFLOAD = "nothing is moved to the CPU's memory; see parallel, activation_checkpointing, seq_len"
_MODELS_OWN = "comes from the files next to the model: change it there, and leave it out here"
_PEFT = "only plain LoRA is trained here; leave it out, or use method: full"
_OBJECTIVE = "only next-token loss is trained here (SFT, continued pretraining)"
_DATA = "prepare the data that way before the training, and leave it out"
_STOPPING = "no metric ends a training early; watch eval_steps and use `clusterctl stop`"
_UPLOAD = "nothing is uploaded; use `hf upload` on output_dir/adapter or output_dir/model"
_LOSS = "the loss is the plain mean over learned tokens; leave it out"
_OPTIMIZER = "the optimizer is AdamW with float32 states; leave it out"
_SCHEDULE = "schedules are cosine, linear, constant, with warmup_steps and min_lr_ratio"

REFUSED: Mapping[str, str] = {
    key: why
    for keys, why in (
        ("""ray_address num_nodes nnodes gpus_per_node gpus num_gpus nproc_per_node node_rank
            master_addr master_port use_ray ray_num_workers ray_run_name world_size device""",
            _LAUNCHER,
        ),
        ("local_rank", "is read from LOCAL_RANK, which every launcher sets; leave it out"),
        ("hf_token token", _IN_FILE.format("HF_TOKEN")),
        ("wandb_api_key", _IN_FILE.format("WANDB_API_KEY")),
        ("comet_api_key", _IN_FILE.format("COMET_API_KEY")),
        *((f"wandb_{word}", _VARIABLE.format(f"WANDB_{word.upper()}"))
          for word in ("entity", "mode", "run_id")),
        ("mlflow_tracking_uri", _VARIABLE.format("MLFLOW_TRACKING_URI")),
        ("wandb_watch wandb_log_model hf_mlflow_log_artifacts", "trackers get metrics only"),
        ("use_comet use_aim aim_repo aim_experiment swanlab_project trackio_project_name",
         "trackers are tensorboard, wandb and mlflow; see report_to"),
        ("""load_in_4bit load_in_8bit gptq bnb_config_kwargs quantization quantization_config qat
            fp8 skip_quant_first_layers skip_quant_last_layers""", QUANTIZED),
        ("fp16 float16", "float16 needs loss scaling and is not offered; use dtype: bfloat16"),
        ("lora_dtype master_dtype gradient_dtype", "what is trained is float32; leave it out"),
        ("""tensor_parallel_size pipeline_parallel_size context_parallel_size expert_parallel_size
            sequence_parallel_degree sequence_parallel_size ep_size heads_k_stride ring_attn_func
            dp_replicate_size dp_shard_size""", _DATA_PARALLEL),
        ("deepspeed", "sharding is FSDP2's work here; for ZeRO-3 write parallel: fsdp"),
        ("device_map max_memory gpu_memory_limit", "parallel decides what is where; leave it out"),
        ("cpu_training offload_params cpu_offload layer_offloading", _OFFLOAD),
        ("sharding_strategy", "write parallel: fsdp, hsdp or ddp"),
        ("min_num_params", "each layer of the model is one FSDP group; leave it out"),
        ("optim optimizer", _OPTIMIZER),
        ("""optim_args optim_target_modules adam_beta3 adam_epsilon2 torchdistx_path lr_groups
            embedding_lr embedding_lr_scale loraplus_lr_ratio loraplus_lr_embedding""", _OPTIMIZER),
        ("""lr_scheduler_kwargs lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor
            cooldown_steps auto_lr_reduction""", _SCHEDULE),
        ("lora_model_dir adapter_path",
         "an adapter is not trained further: merge it into the base, and name that as base"),
        ("merge_adapter merge_lora", "merge it afterwards with PEFT's merge_and_unload"),
        ("""lora_modules_to_save peft_use_dora peft_use_rslora peft_init_lora_weights peft
            peft_layer_replication peft_layers_to_transform lora_fan_in_fan_out relora
            relora_steps relora_prune_ratio unfrozen_parameters""", _PEFT),
        ("train_router", "name the router: lora_target_parameters: [mlp.gate.weight]"),
        ("""router_aux_loss_coef router_z_loss_coef loss_scale neftune_noise_alpha
            label_smoothing_factor""", _LOSS),
        ("rl reward_model process_reward_model trl vllm dpo_use_weighting rl_beta num_labels",
         _OBJECTIVE),
        ("from_scratch random_init_weights reinit_weights",
         "a base is always loaded; write its first weights with transformers' save_pretrained"),
        ("""base_model_config tokenizer_config overrides_of_model_config model_config rope_scaling
            max_model_len special_tokens bos_token eos_token unk_token additional_special_tokens
            tokens added_tokens_overrides eot_tokens resize_token_embeddings_to_32x
            shrink_embeddings tokenizer_legacy""", _MODELS_OWN),
        ("chat_template template chat_template_jinja",
         "the template next to the tokenizer is used: put yours into chat_template.jinja there"),
        ("default_system_message system response_prefix",
         "write the system message into the lines, or into the chat template"),
        ("train_on_inputs train_on_prompt",
         "prompts are never learned; use lines of {text: ...} for that"),
        ("pretraining_dataset streaming", "data is read from files; see dataset_path"),
        ("""shards shards_idx dataset_shard_num dataset_shard_idx dataset_exact_deduplication
            curriculum_sampling min_sample_len bench_dataset do_bench_eval do_causal_lm_eval""",
         _DATA),
        ("""early_stopping_patience early_stop load_best_model_at_end metric_for_best_model
            greater_is_better loss_watchdog_threshold loss_watchdog_patience epoch_adjustment""",
         _STOPPING),
        ("save_only_model", "a checkpoint always has what a resume needs; leave it out"),
        ("hub_model_id hub_strategy push_to_hub push_dataset_to_hub", _UPLOAD),
        ("plugins", "no code of other packages is loaded; leave it out"),
        ("xformers_attention s2_attention", "write attn_implementation as transformers names it"),
        ("train_vision max_pixels image_size", "only text is trained"),
        ("apply_recommended_values", "every value is in the file or a documented default"),
        ("save_on_each_node", "is found out; see checkpoint_storage"),
    )
    for key in keys.split()
}  # fmt: skip
"""Key → why it is none here, and what to write instead. Values of OFF are taken."""

NEUTRAL: Mapping[str, frozenset[str]] = {
    "optim": frozenset({"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"}),
    "optimizer": frozenset({"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"}),
    "chat_template": frozenset({"tokenizer_default"}),
    "sharding_strategy": frozenset({"full_shard", "1"}),
    "lora_dtype": frozenset({"fp32", "float32"}),
    "master_dtype": frozenset({"fp32", "float32"}),
    "peft_init_lora_weights": frozenset({"true"}),
    **dict.fromkeys(
        (key for key, why in REFUSED.items() if why == _DATA_PARALLEL), frozenset({"1"})
    ),
}
"""Values of refused keys, besides OFF, that mean what is done here anyway."""

ALWAYS: Mapping[str, str] = {
    "shuffle_merged_datasets": "samples are shuffled in every epoch; see seed",
    "save_safetensors": "exports are safetensors",
    "use_chat_template": "messages are always written by the chat template",
}
"""Keys that are refused only where they are off."""

_SPEED = "decides speed or memory elsewhere; results are the same"
_INFERRED = "is read from the model's config.json"
_PADDING = "padding never changes a loss here"
_LOGGING = "decides what is logged elsewhere"
NO_EFFECT: Mapping[str, str] = {
    key: why
    for keys, why in (
        ("""model_type tokenizer_type tokenizer_use_fast is_falcon_derived_model
            is_llama_derived_model is_mistral_derived_model is_qwen_derived_model type_of_model""",
         _INFERRED),
        ("""pad_to_sequence_len eval_sample_packing padding_side padding_free pad_token
            batch_flattening sample_packing_eff_est sample_packing_group_size
            sample_packing_bin_size sample_packing_sequentially total_num_tokens
            multipack_real_batches""", _PADDING),
        ("tf32", "float32 products are computed in full precision"),
        ("""lora_on_cpu low_cpu_mem_usage embeddings_skip_upcast lora_mlp_kernel lora_qkv_kernel
            lora_o_kernel torch_compile torch_compile_backend torch_compile_mode
            gradient_checkpointing_kwargs flash_attn_cross_entropy flash_attn_rms_norm
            flash_attn_fuse_qkv flash_attn_fuse_mlp flash_optimum cut_cross_entropy
            dataset_processes dataset_num_proc dataset_keep_in_memory dataloader_num_workers
            dataloader_pin_memory dataloader_prefetch_factor gc_steps accelerator_config
            ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters
            use_cuda_graphs lmhead_chunks attn_bwd_chunks long_context use_fused_rope zero_level
            shard_weights shard_gradients use_all_to_all_reduce memcpy_all_gather
            memcpy_send_recv persistent_quants use_zero_copy use_write_combined
            fsdp_version state_dict_type final_state_dict_type
            auto_wrap_policy transformer_layer_cls_to_wrap cpu_ram_efficient_loading
            sync_module_states use_orig_params limit_all_gathers backward_prefetch
            forward_prefetch mixed_precision_policy""", _SPEED),
        ("""strict debug hf_use_auth_token remove_unused_columns
            eval_seed overwrite_output_dir do_train do_eval""", "nothing else is possible here"),
        ("""eval_table_size eval_max_new_tokens include_tokens_per_second profiler_steps log_file
            log_gpu_util logging_dir logging_strategy logging_first_step debug_time_breakdown
            debug_memory_breakdown include_num_input_tokens_seen""", _LOGGING),
    )
    for key in keys.split()
}  # fmt: skip
"""Key → why its value changes no result here; it is taken with a note."""

PREFIXES: Mapping[str, tuple[str, bool]] = {
    "qlora_": (QUANTIZED, True),
    "offload_": (_OFFLOAD, True),
    "fp8_": (QUANTIZED, True),
    "fp4_": (QUANTIZED, True),
    "normuon_": (_OPTIMIZER, True),
    "relora_": (_PEFT, True),
    "kto_": (_OBJECTIVE, True),
    "dpo_": (_OBJECTIVE, True),
    "orpo_": (_OBJECTIVE, True),
    "liger_": (_SPEED, False),
    "unsloth_": (_SPEED, False),
}
"""Start of a key → why, and whether it is refused."""

FORMS = frozenset({
    "alpaca", "sharegpt", "chat_template", "completion", "text", "instruction", "conversation",
    "auto",
})  # fmt: skip
FORM_NOTE = "type has no effect: each line is read by the keys in it"
_ITEM: Mapping[str, frozenset[str]] = {
    "type": FORMS,
    "ds_type": frozenset({"csv", "json", "jsonl", "parquet"}),
    "split": frozenset({"train"}),
    "roles_to_train": frozenset({"['assistant']", "['gpt']"}),
    "train_on_eos": frozenset({"turn"}),
    "chat_template": frozenset({"tokenizer_default"}),
}  # fmt: skip
"""Key of an item of `datasets` → the values that mean what is done here."""
_COLUMNS: Mapping[str, str] = {
    "field_messages": "messages",
    "messages_field": "messages",
    "field_system": "system",
    "system_field": "system",
    "field_tools": "tools",
    "tools_field": "tools",
    "field": "text",
    "text_field": "text",
    "instruction_field": "instruction",
    "input_field": "input",
    "output_field": "output",
    "message_field_role": "role",
    "message_field_content": "content",
    "message_field_training": "train",
}
"""Key of an item that names a column → the key of `columns` for it."""
_USUAL = (
    ("messages", "conversations"), ("role", "from"), ("content", "value"), ("train", "training"),
)  # fmt: skip
"""Columns that are read under both names anyway."""


def takes_structure(name: str) -> bool:
    """Whether a key's list or mapping is read whole, since no keys of this program are in it."""
    lists = {"datasets", "test_datasets", "validation_datasets", "fsdp"}
    return name in lists or name in REFUSED or name in NO_EFFECT


def why_refused(name: str, raw: object) -> str | None:
    """Return why a key of another program cannot be taken; "": its value leaves it off."""
    value = str(raw).lower()
    if name in ALWAYS:
        return ALWAYS[name] if value in OFF and raw is not None else ""
    why = REFUSED.get(name) or _by_prefix(name, refused=True)
    return "" if why and value in OFF | NEUTRAL.get(name, frozenset()) else why


def why_no_effect(name: str) -> str | None:
    """Return why a key of another program changes no result here."""
    return NO_EFFECT.get(name) or _by_prefix(name, refused=False)


def _by_prefix(name: str, *, refused: bool) -> str | None:
    starts = (
        why for start, (why, no) in PREFIXES.items() if name.startswith(start) and no == refused
    )
    return next(starts, None)


def read_datasets(raw: list[Any]) -> str | list[str | dict[str, Any]]:
    """Return the paths of axolotl's or Surogate's list, with what else an item has.

    Raises:
        ValueError: a key of an item asks for what is not done here; all are named.
    """
    found: list[str | dict[str, Any]] = []
    problems: list[str] = []
    for item in raw:
        if not (isinstance(item, Mapping) and isinstance(item.get("path"), str)):
            found.append(item)  # a path alone, or what train.config.datasets refuses
            continue
        paths, rest = _paths(item)
        ours = {key: rest.pop(key) for key in ("weight", "roles") if rest.get(key) is not None}
        if columns := _columns(rest):
            ours["columns"] = columns
        problems += _unlike(item["path"], rest)
        found += [{"path": path, **ours} if ours else path for path in paths]
    if problems:
        raise ValueError("; ".join(problems))
    return found[0] if len(found) == 1 and isinstance(found[0], str) else found


def _paths(item: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return an item's paths and its other keys; `path: json` means its data_files."""
    rest = {str(key): value for key, value in item.items() if key != "path"}
    if item["path"] in {"csv", "json", "parquet"} and rest.get("data_files"):
        files = rest.pop("data_files")
        return [str(file) for file in (files if isinstance(files, list) else [files])], rest
    return [item["path"]], rest


def _columns(rest: dict[str, Any]) -> Any:  # noqa: ANN401  (what is no mapping is refused later)
    """Take an item's names of columns out of its keys; return those that are not usual ones."""
    columns = {ours: name for key, ours in _COLUMNS.items() if (name := rest.pop(key, None))}
    for key in ("columns", "message_property_mappings"):
        mapping = rest.pop(key, None) or {}
        if not isinstance(mapping, Mapping):
            return mapping
        columns |= mapping
    return {
        ours: name for ours, name in columns.items() if ours != name and (ours, name) not in _USUAL
    }


def _unlike(path: str, keys: Mapping[str, Any]) -> list[str]:
    """Return which keys of an item ask for what is not done here."""
    problems = []
    for key, value in keys.items():
        if str(value).lower() in OFF:
            continue
        if key not in _ITEM:
            problems.append(f"{key} of {path}: {_DATA}")
        elif str(value) not in _ITEM[key]:
            wanted = " or ".join(sorted(_ITEM[key]))
            problems.append(f"{key} of {path}: expected {wanted}, found {value}")
    return problems
