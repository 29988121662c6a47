"""The DDiT family: MDLM, BD3-LM and its causal twin, RADD, SEDD, DUO, UDLM and GIDD.

One network by name: layer norms, rotary positions, a GELU MLP, a head with a bias, and adaLN by
the time. Where a model was trained with the time held at 0 (`time_conditioning` false), adaLN is
constant: it is folded into norms and projections while loading (`unmask.net.folding`), and written
as the constant that it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unmask.base.config import SettingsError
from unmask.base.errors import UserError
from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import Dialect, FieldTable, Source, build_config
from unmask.net.dialects.names import Names
from unmask.net.model import Blueprint
from unmask.net.paradigm import get_paradigm
from unmask.noise.settings import NoiseConfig

_WIDTH = 128
"""The width of the condition, where a network without one is written."""
_SHAPES = {"width": "hidden_dim", "layers": "n_blocks", "heads": "n_heads"}
_HUB = _SHAPES | {"vocab_size": "vocab_size", "context": "model_length", "adaln": "cond_dim"}
_NESTED = _SHAPES | {"vocab_size": "vocab_size", "width": "hidden_size", "context": "length"}
_GIDD = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "context": "max_seq_len",
    "adaln": "timestep_cond_dim",
}


@dataclass(frozen=True)
class Peer:
    """One kind of model and how its settings are written."""

    name: str
    about: str
    model_type: str
    """The `model_type` of settings in one level; for nested ones the model's `type`."""
    architecture: str
    table: FieldTable
    kind: str = "masked"
    prefix: str = "backbone."
    is_nested: bool = False
    """RADD's and SEDD's: sizes in a part of their own, the mask not counted among the tokens."""
    time_input: str = "sigma"

    def recognise(self, source: Source) -> bool:
        config = source.config
        if self.is_nested:
            model = config.get("model")
            return isinstance(model, dict) and model.get("type") == self.model_type
        # "dit" alone could be anybody's.
        fits = config.get("model_type") == self.model_type
        return fits and self.table.same.get("adaln", "vocab_size") in config

    def read(self, source: Source) -> Blueprint:
        settings = self._flatten(source)
        values = self.table.read(settings, source.label)
        width = values.pop("adaln", None)
        switches: dict[str, Any] = {"norm_bias": self.name == "radd"}
        if self._is_conditioned(settings):
            if self._is_constant(settings):
                switches = {"norm_bias": True}
            else:
                switches |= {"adaln": width, "time": True, "time_input": self.time_input}
        if settings.get("cfg"):
            switches["classes"] = settings.get("cfg_num_classes")
        if settings.get("cross_attn"):
            switches["block"] = settings.get("block_size")
        is_causal = settings.get("causal") is True
        config = build_config(
            values,
            source,
            mlp_width=4 * values["width"] if isinstance(values["width"], int) else 0,
            causal=is_causal,
            norm="layer",
            mlp="gelu",
            mlp_bias=True,
            head_bias=True,
            **switches,
        )
        if is_causal:
            return Blueprint(config, "causal")
        mask = config.vocab_size - 1 if get_paradigm(self.kind).has_mask else None
        noise = NoiseConfig()
        if self.name == "gidd":
            share = settings["p_uniform"]
            noise = NoiseConfig(schedule="bump", schedule_settings={"p_uniform": share})
        return Blueprint(config, self.kind, mask, noise=noise)

    def find_stored(self, config: NetConfig, source: Source) -> NetConfig:
        """The network as it is stored: with adaLN, where that is constant."""
        settings = self._flatten(source)
        if not (self._is_conditioned(settings) and self._is_constant(settings)):
            return config
        return replace(config, adaln=settings[self.table.same["adaln"]], time=True, norm_bias=False)

    def write(self, blueprint: Blueprint) -> dict[str, Any]:
        config = blueprint.config
        is_timed = config.adaln is not None
        settings = self.table.write(config)
        if "adaln" in self.table.same:
            settings[self.table.same["adaln"]] = config.adaln or _WIDTH
        if self.is_nested:
            tokens = settings.pop("vocab_size") - 1
            return {"model": settings | {"type": self.model_type}, "tokens": tokens} | (
                {"graph": {"type": "absorb"}} if self.name == "sedd" else {}
            )
        settings |= {"model_type": self.model_type, "architectures": [self.architecture]}
        if "time_conditioning" in self.table.needed:
            settings["time_conditioning"] = is_timed
        if self.name == "bd3lm":
            settings |= {
                "adaln": is_timed or config.norm_bias,
                "causal": config.causal,
                "cross_attn": config.block is not None,
                "block_size": config.block or (1 if config.causal else config.context),
            }
        if self.name == "gidd":
            if blueprint.noise.schedule != "bump":
                raise UserError("a gidd model has the schedule 'bump'")
            settings |= blueprint.noise.schedule_settings
        if self.name == "udlm":
            settings |= {"cfg": config.classes is not None, "cfg_num_classes": config.classes or -1}
        return settings

    def _flatten(self, source: Source) -> Mapping[str, Any]:
        if not self.is_nested:
            return source.config
        tokens, graph = source.config.get("tokens"), source.config.get("graph")
        problems = []
        if not isinstance(tokens, int):
            problems += [f"'tokens' is {tokens!r}, expected a number"]
            tokens = 0
        noise = graph.get("type", "absorb") if isinstance(graph, dict) else graph or "absorb"
        if noise != "absorb":
            problems += [f"the graph's 'type' is {noise!r}, but only 'absorb' is supported"]
        if problems:
            raise SettingsError(source.label, problems)
        return dict(source.config["model"]) | {"vocab_size": tokens + 1}

    def _is_conditioned(self, settings: Mapping[str, Any]) -> bool:
        return "adaln" in self.table.same and settings.get("adaln", True) is True

    def _is_constant(self, settings: Mapping[str, Any]) -> bool:
        return settings.get("time_conditioning", True) is False


def _name_tensors(prefix: str) -> Names:
    ends = {
        "embedding.weight": "vocab_embed.embedding",
        "head": "output_layer.linear",
        "norm": "output_layer.norm_final",
        "norm.modulation": "output_layer.adaLN_modulation",
        "time.rise": "sigma_map.mlp.0",
        "time.mix": "sigma_map.mlp.2",
        "time.classes": "cond_map.embedding_table",
    }
    parts = {
        "attn_norm": "norm1",
        "attn.qkv": "attn_qkv",
        "attn.out": "attn_out",
        "mlp_norm": "norm2",
        "mlp.up": "mlp.0",
        "mlp.down": "mlp.2",
        "modulation": "adaLN_modulation",
    }
    named = {ours: prefix + theirs for ours, theirs in ends.items()}
    return Names(prefix + "blocks.{i}.", parts, named)


_CONSTANT = "a constant time, folded into the weights and written as such"
_TIMED = FieldTable(same=_HUB, needed=("time_conditioning",))
PEERS = (
    Peer("mdlm", f"MDLM: {_CONSTANT}", "mdlm", "MDLM", _TIMED),
    Peer(
        "bd3lm",
        f"BD3-LM, and the masked and causal models of its class: {_CONSTANT}; blocks",
        "bd3lm",
        "BD3LM",
        replace(_TIMED, needed=(*_TIMED.needed, "block_size")),
    ),
    Peer(
        "udlm",
        "UDLM: uniform noise, adaLN by sigma; with `classes` of "
        "`unmask.net.transformer.Transformer`",
        "udlm",
        "UDLM",
        _TIMED,
        "uniform",
    ),
    Peer(
        "duo",
        "DUO: uniform noise, adaLN by sigma",
        "DUO",
        "DUO",
        FieldTable(same=_HUB, fixed={"causal": False}),
        "uniform",
    ),
    Peer(
        "radd", "RADD: no time", "ddit_wot", "", FieldTable(same=_NESTED), prefix="", is_nested=True
    ),
    Peer(
        "sedd",
        "SEDD with absorbing noise: adaLN by sigma; logits are its head's, of which its scores "
        "follow",
        "ddit",
        "",
        FieldTable(same=_NESTED | {"adaln": "cond_dim"}),
        prefix="",
        is_nested=True,
    ),
    Peer(
        "gidd",
        "GIDD: hybrid noise with uniform draws in the middle (the schedule `bump`), adaLN by t",
        "dit",
        "DIT",
        FieldTable(same=_GIDD, needed=("p_uniform",)),
        "hybrid",
        prefix="",
        time_input="t",
    ),
)

DIALECTS = tuple(
    Dialect(
        name=peer.name,
        about=peer.about,
        recognise=peer.recognise,
        read=peer.read,
        map_tensors=_name_tensors(peer.prefix).map_tensors,
        write=peer.write,
        find_stored=peer.find_stored,
        ignored=(
            "rotary_emb.inv_freq",
            "rotary_emb.cos_cached",
            "rotary_emb.sin_cached",
            "sampling_eps_min",
            "sampling_eps_max",
        ),
        needs_mask=peer.name in ("mdlm", "radd", "sedd"),
    )
    for peer in PEERS
)
