"""What tokenizers put around a text: the same ids as transformers', for every post-processor."""

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from unmask import Tokenizer, UserError
from unmask.data.shards import Shards, write_shards

TEXT = "The patient cartographer mapped the caves."
SPECIALS = ["<unk>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"]
TEMPLATE = processors.TemplateProcessing(
    single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
)
CLOSED = processors.TemplateProcessing(
    single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)]
)
KINDS: dict[str, tuple[Any, list[int], list[int]]] = {
    "none": (None, [], []),
    "llama": (TEMPLATE, [1], []),
    "t5": (CLOSED, [], [2]),
    "bert": (processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3)), [3], [4]),
    "roberta": (processors.RobertaProcessing(("</s>", 2), ("<s>", 1)), [1], [2]),
    "byte level": (processors.ByteLevel(trim_offsets=True), [], []),
    "sequence": (processors.Sequence([processors.ByteLevel(), TEMPLATE]), [1], []),
}
"""A post-processor of each kind, and what it puts before and after a text."""


def make(folder, kind: str, **config: object) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=SPECIALS, vocab_size=99)
    backend.train_from_iterator([TEXT] * 9, trainer)
    backend.post_processor = KINDS[kind][0]
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "[MASK]"}
    names |= {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return Tokenizer.load(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(tmp_path, kind):
    """Of a whole text, also once it was saved; a prompt lacks the ending, a piece has neither."""
    # What these say counts only where tokenizer.json is missing, as in transformers 5.
    known = make(tmp_path / "made", kind, add_bos_token=kind == "none", add_eos_token=True)
    known.save(tmp_path / "again")
    own = known.encode(TEXT, added="both")
    for folder in ("made", "again"):
        for theirs in (
            AutoTokenizer.from_pretrained(tmp_path / folder),
            PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / folder / "tokenizer.json")),
        ):
            assert theirs(TEXT)["input_ids"] == own.ids
        assert Tokenizer.load(tmp_path / folder).encode(TEXT, added="both") == own
    _, before, after = KINDS[kind]
    piece = known.encode(TEXT, added="nothing").ids
    assert (known.beginning, known.ending) == (before, after)
    assert own.ids == [*before, *piece, *after]
    assert known.encode(TEXT).ids == [*before, *piece]
    assert known.decode(known.encode(TEXT).ids) == TEXT
    # What is added stands for no character.
    assert len(own.offsets) == len(own.ids)
    assert all(own.offsets[i] == (0, 0) for i in range(len(before)))
    assert own.offsets[-1][1] == len(TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_text_has_is_not_added_again(tmp_path, kind):
    known = make(tmp_path, kind)
    written = [known.backend.id_to_token(i) for i in (*known.beginning, *known.ending)]
    text = TEXT if not written else f"{written[0] if known.beginning else ''}{TEXT}"
    text += written[-1] if known.ending else ""
    assert known.encode(text, added="both").ids == known.encode(TEXT, added="both").ids


def test_another_beginning_can_be_given(tmp_path):
    known = make(tmp_path, "roberta")
    changed = known.change_beginning("[CLS]")
    assert (changed.beginning, changed.ending, known.beginning) == ([3], [2], [1])
    assert changed.list_contents() != known.list_contents()
    bare = known.change_beginning("none")
    assert bare.encode(TEXT, added="both") == known.encode(TEXT, added="nothing")
    changed.save(tmp_path / "again")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "again" / "tokenizer.json"))
    assert theirs(TEXT)["input_ids"] == changed.encode(TEXT, added="both").ids
    with pytest.raises(UserError, match="'<start>' is not in the tokenizer"):
        known.change_beginning("<start>")


@pytest.mark.parametrize("adds", [True, False, None])
def test_settings_say_it_where_there_is_no_tokenizer_file(tmp_path, adds):
    known = make(tmp_path, "llama")
    known.backend.model.save(str(tmp_path))
    ids = {token: known.backend.token_to_id(token) for token in SPECIALS}
    table = {str(i): {"content": token} for token, i in ids.items()}
    named = {"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": table}
    more = {} if adds is None else {"add_bos_token": adds, "add_eos_token": adds}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | more))
    read = Tokenizer.from_qwen2_files(tmp_path)
    assert (read.beginning, read.ending) == (([1], [2]) if adds else ([], []))


def test_documents_in_shards_stand_from_beginning_to_end(tmp_path):
    known = make(tmp_path / "made", "llama")
    write_shards([TEXT, "caves"], known, tmp_path / "shards")
    ids = [known.encode(text).ids for text in (TEXT, "caves")]
    assert Shards(tmp_path / "shards").maps[0].tolist() == [*ids[0], 2, *ids[1], 2]
