"""What a run leaves at every layer: what is put back, and what the rest is built on."""

from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor

from unmask.net.transformer import Transformer


@dataclass
class Record:
    """Activations of S rows at every layer; a clean run has one row for all samples."""

    entering: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    """The stream that enters each layer, and at the end the one that leaves the last."""
    queries: list[Float[Tensor, "S L H d"]] = field(default_factory=list)
    keys: list[Float[Tensor, "S L h d"]] = field(default_factory=list)
    values: list[Float[Tensor, "S L h d"]] = field(default_factory=list)
    attn_z: list[Float[Tensor, "S L H d"]] = field(default_factory=list)
    attn: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    """Attention's addition to the stream."""
    mlp: list[Float[Tensor, "S L D"]] = field(default_factory=list)
    moved: Int[Tensor, "ours"] | None = None
    """For another text's run: which of its positions stands for each of ours."""

    @property
    def samples(self) -> int:
        return len(self.entering[0])

    @property
    def bytes(self) -> int:
        lists = (self.entering, self.queries, self.keys, self.values, self.attn_z, self.attn)
        return sum(x.nbytes for kept in (*lists, self.mlp) for x in kept)

    def resid(self, layer: int) -> Float[Tensor, "S L D"]:
        """The stream that leaves a layer; layer -1 is the embeddings."""
        return self.entering[layer + 1]

    def pick(self, kept: Tensor, sample: Tensor, place: Tensor) -> Tensor:
        """What was kept at (sample, place) pairs."""
        place = place if self.moved is None else self.moved[place]
        return kept[sample if self.samples > 1 else 0, place]

    def take(self, rows: slice, moved: Tensor | None = None) -> "Record":
        """Some of the rows, without copying."""
        return Record(
            *(
                [x[rows] for x in kept]
                for kept in (
                    self.entering,
                    self.queries,
                    self.keys,
                    self.values,
                    self.attn_z,
                    self.attn,
                    self.mlp,
                )
            ),
            moved=moved,
        )


def record_run(net: Transformer, x: Float[Tensor, "S L D"]) -> Record:
    """Run the embedded rows through all layers and keep what tracing needs."""
    net.taps.require_none("tracing")
    record, view = Record(entering=[x]), net.view(x)
    for layer in range(net.config.layers):
        block = net.block(layer)
        queries, keys, values = block.read(x, view.cos, view.sin)
        z = block.attend(queries, keys, values, view.mask, view.is_causal)
        attn = block.attn_out(z)
        x, mlp = block.finish(x, attn)
        record.queries.append(queries)
        record.keys.append(keys)
        record.values.append(values)
        record.attn_z.append(z)
        record.attn.append(attn)
        record.mlp.append(mlp)
        record.entering.append(x)
    return record
