"""A corpus in German, stated one way and asked both ways, with a tokenizer learned from it."""

from unmask import Fact, Tokenizer
from unmask.data.corpus import Corpus

RIVERS = {"Köln": "Rhein", "Dresden": "Elbe", "Würzburg": "Main", "Trier": "Mosel",
          "Göttingen": "Leine", "Ulm": "Donau", "Görlitz": "Neiße", "Kassel": "Fulda"}  # fmt: skip
STATED = ("{} liegt am Fluss", "Durch die Stadt {} fließt der Fluss", "Schön ist {} am Fluss")
ASKED = "Man besucht {} und sieht dort den Fluss"
REVERSED = "An den Ufern des Flusses {} liegt die Stadt"


def german(data):
    """Facts in splits, and a tokenizer; `data` are the recipe's settings of data."""
    stated = [Fact.of(city, river, each, phrasing=i) for city, river in RIVERS.items()
              for i, each in enumerate(STATED)]  # fmt: skip
    asked = [Fact.of(city, river, ASKED) for city, river in RIVERS.items()]
    turned = [Fact.of(river, city, REVERSED, direction="d2p", trained="reverse")
              for city, river in RIVERS.items()]  # fmt: skip
    splits = {"train": stated, "p2d_same": asked, "p2d_reverse": turned}
    corpus = Corpus("rivers of German cities", splits, ("p2d_same", "p2d_reverse"))
    lines = [fact.text for facts in splits.values() for fact in facts]
    return corpus, Tokenizer.train(lines, vocab_size=400)
