"""The Hugging Face Trainer with a LoRA adapter on a tiny Llama, made from its configuration."""

from __future__ import annotations

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume", help="a checkpoint to start from")
    given = parser.parse_args()

    torch.manual_seed(0)
    # Here your own model is loaded, by from_pretrained of AutoModelForCausalLM.
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, vocab_size=256)
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), adapter)
    rows = [[(7 * i + j) % 256 for j in range(32)] for i in range(256)]

    gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        "out",
        max_steps=given.steps,
        save_steps=10,
        logging_steps=10,
        per_device_train_batch_size=4,
        use_cpu=not gpu,
        ddp_find_unused_parameters=False,
        log_on_each_node=False,
        ddp_backend="nccl" if gpu else "gloo",
        report_to=[],
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=given.resume)
    if trainer.is_world_process_zero():
        model.save_pretrained("out/adapter")
        ranks = arguments.world_size
        print(f"ended at step {trainer.state.global_step} on {ranks} ranks", flush=True)


if __name__ == "__main__":
    main()
