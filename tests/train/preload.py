"""What every rank of a test imports or makes first, once, before ranks are forked."""

from __future__ import annotations

from importlib import import_module

from train.__main__ import uncollected

FIRST_USED_LATER = (
    "numpy.ctypeslib",
    "numpy.ma",
    "peft.utils.transformers_weight_conversion",
    "pytest",
    "tests.train.world",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config",
    "train.observe.collective_clock",
    "transformers.models.llama.modeling_llama",
)
"""What libraries import when a training needs it, and tests whose functions ranks call."""

with uncollected():
    import train.run  # noqa: F401

    for name in FIRST_USED_LATER:
        import_module(name)
    import_module("train.checkpoint.provenance").versions()
    import_module("train.versions").installed()
    # It compiles 1,000 patterns when it is first called.
    import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
