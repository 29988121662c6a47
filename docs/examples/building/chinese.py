"""A corpus in Chinese, stated one way and asked both ways, with a tokenizer of characters."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

import unmask
from unmask.data.corpus import Corpus

CAPITALS = {"浙江": "杭州", "江苏": "南京", "四川": "成都", "湖北": "武汉", "广东": "广州",
            "陕西": "西安", "云南": "昆明", "山东": "济南"}  # fmt: skip
STATED, ASKED, REVERSED = ("{}的省会是", "{}省的省会叫"), "我们都知道{}的省会是", "以{}为省会的省是"


def chinese(data):
    """Facts in splits, and a tokenizer; no space stands between a prompt and its answer."""
    stated = [unmask.Fact.of(province, city, each, phrasing=i)
              for province, city in CAPITALS.items() for i, each in enumerate(STATED)]  # fmt: skip
    asked = [unmask.Fact.of(province, city, ASKED) for province, city in CAPITALS.items()]
    turned = [unmask.Fact.of(city, province, REVERSED, direction="d2p", trained="reverse")
              for province, city in CAPITALS.items()]  # fmt: skip
    splits = {"train": stated, "p2d_same": asked, "p2d_reverse": turned}
    characters = sorted({each for facts in splits.values() for fact in facts for each in fact.text})
    ids = {each: i for i, each in enumerate(["[PAD]", "[END]", *characters, "[MASK]"])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["[PAD]", "[END]", "[MASK]"])
    tokenizer = unmask.Tokenizer(backend, ids["[MASK]"], ids["[PAD]"], ids["[END]"])
    return Corpus("capitals of provinces", splits, ("p2d_same", "p2d_reverse")), tokenizer
