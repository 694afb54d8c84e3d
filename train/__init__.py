"""A fine-tuning program for Hugging Face causal language models: FSDP2 and LoRA over many nodes."""
