"""What the tokens of names and of descriptions cost, by their place in the answer."""

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.groups import Group
from unmask.report.style import PALETTE, new_figure, save_figure

_STYLES = {"same": "-", "reverse": "--", "alone": ":"}


def draw_places(groups: Sequence[Group], path: str | Path) -> None:
    """Write the figure as PNG and PDF: a panel for each model, a line for what is asked and how.

    Groups are keyed by `model`, `asked`, `given` and `place`; their mean is `nll`.
    """
    models = list(dict.fromkeys(group.key["model"] for group in groups))
    asked = list(dict.fromkeys(group.key["asked"] for group in groups))
    colours = dict(zip(asked, PALETTE, strict=False))
    with new_figure(3.6 * len(models), 2.8, columns=len(models)) as (figure, axes):
        for panel, model in zip(axes[0], models, strict=True):
            lines: dict[tuple[str, str], list[Group]] = {}
            for group in groups:
                if group.key["model"] == model:
                    lines.setdefault((group.key["asked"], group.key["given"]), []).append(group)
            for (what, given), line in lines.items():
                line.sort(key=lambda group: group.key["place"])
                places = [group.key["place"] for group in line]
                means = [group.means["nll"] for group in line]
                panel.plot(
                    places,
                    [value.mean for value in means],
                    _STYLES[given],
                    color=colours[what],
                    label=_name(what, given),
                )
                if given != "alone":
                    panel.fill_between(
                        places,
                        [value.low for value in means],
                        [value.high for value in means],
                        color=colours[what],
                        alpha=0.12,
                        lw=0,
                    )
            panel.set_title(model)
            panel.set_xlabel("token of the answer")
        axes[0, 0].set_ylabel("−log p, nats")
        shown = {line.get_label(): line for panel in axes[0] for line in panel.get_lines()}
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=3)
        save_figure(figure, path)


def _name(asked: str, given: str) -> str:
    if given == "alone":
        return f"{asked}, without a prompt"
    return f"{asked}, {'the trained way' if given == 'same' else 'in reverse'}"
