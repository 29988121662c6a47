"""Task files of lm-evaluation-harness over local data, and a chat template for their prompts."""

import json
from pathlib import Path
from typing import Any

import yaml

CHOICES = [
    {"prompt": "The caves of", "choices": ["Orsel are deep.", "deep."], "answer": 0},
    {"prompt": "The baker of", "choices": ["the", "Wrenmouth sings.", "of"], "answer": 1},
    {"prompt": "The baker", "choices": ["of", "caves"], "answer": 0},
]
TEXTS = [{"text": "The caves of Orsel are deep. " * 7}, {"text": "The baker of Wrenmouth sings."}]
PROMPTS = [{"prompt": "The caves", "answer": " of"}, {"prompt": "The baker of", "answer": " W"}]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_tasks(folder: Path) -> Path:
    """A folder with the tasks `made_choice`, `made_rolling` and `made_text`, and their data."""
    folder.mkdir(exist_ok=True)
    choice = {"doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}]}
    _write(folder, "made_choice", "multiple_choice", CHOICES, choice)
    rolling = {"doc_to_text": "", "doc_to_target": "{{text}}"}
    rolling |= {"metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}]}
    _write(folder, "made_rolling", "loglikelihood_rolling", TEXTS, rolling)
    text = {"metric_list": [{"metric": "exact_match"}]}
    text["generation_kwargs"] = {"until": ["."], "max_gen_toks": 9, "do_sample": False}
    _write(folder, "made_text", "generate_until", PROMPTS, text)
    return folder


def _write(folder: Path, name: str, kind: str, rows: list[dict], more: dict[str, Any]) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": str(data), "cache_dir": str(folder / "cache")},
        "test_split": "train",
        "output_type": kind,
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task | more))
