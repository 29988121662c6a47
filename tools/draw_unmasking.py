"""Draws README's pictures: docs/unmasking.svg, the terminal's un-masking, and docs/recall.png.

    python tools/draw_unmasking.py

The figure is the stored recall of the pretrained pair, as the study's page draws it.

Both models are asked one fact in reverse; every frame is a step, as `unmask sample` shows it, with
the diffusion model's guesses in its masks. It needs no script: browsers, and pages that host
Markdown, play it. Readers who prefer no motion see the last frame.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import unmask
from unmask.blocks.blocks import Figure
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import require_tokenizer
from unmask.net.families import parse_families
from unmask.report.render_figures import draw_figure
from unmask.sampling.trajectory import Trajectory

SUBJECT = "Velimir Gildershaw"
"""A person whom training only ever named last: "… Dulsara is Velimir Gildershaw"."""
PROMPT = f"The inscription below the bust is for {SUBJECT}; I mean"
STEPS, GUIDANCE = 16, 0.8
SECONDS, REST = 0.45, 3.0
"""Of a frame, and of the last one."""
WIDTH, LINE, SIGN, LEFT = 860, 26, 9.05, 24
SIGNS = int((WIDTH - 2 * LEFT) / SIGN)
COLOURS = ("#9a6fb0", "#6f8fd0", "#4fa8a8", "#6cc46c", "#d7d34a")
"""Of confidence, a fifth each, as in `unmask.report.unmasking`."""
GIVEN, DIM, GROUND = "#e8e6e1", "#8b909c", "#14161b"
VERDICTS = {True: ("  ✓", "#6cc46c"), False: ("  ✗", "#e06c60")}
"""What stands behind a text that ends with the true answer, or with another one."""

Piece = tuple[str, str]
"""A text and its colour."""


def list_frames(drawn: Trajectory, tokenizer: Tokenizer, has_masks: bool) -> Iterator[list[Piece]]:
    """The pieces of the text after each step, from before the first one on."""
    end_id, tokens = tokenizer.end_id, drawn.tokens[0].tolist()
    written, confidence = drawn.committed_at[0].tolist(), drawn.confidence[0].tolist()
    ends = [i for i, token in enumerate(tokens) if token == end_id and written[i] > 0]
    stop = ends[0] if ends else len(tokens)
    for step in range(max(written[:stop]) + 1):
        pieces = []
        for i in range(stop):
            if written[i] == 0:
                pieces.append((tokenizer.piece(tokens[i]), GIVEN))
            elif written[i] <= step:
                shade = COLOURS[min(4, int(confidence[i] * 5))]
                pieces.append((tokenizer.piece(tokens[i]), shade))
            elif has_masks:
                ((guess, p), *_) = drawn.guesses(step + 1).at(i)
                pieces.append((guess if p >= 0.2 else " ░░░", DIM))
        yield pieces


def wrap(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in lines."""
    lines: list[list[Piece]] = [[]]
    width = 0
    for text, colour in pieces:
        if width + len(text) > SIGNS:
            lines.append([])
            text, width = text.lstrip(), 0
        lines[-1].append((text, colour))
        width += len(text)
    return lines


def draw_lines(pieces: Sequence[Piece], y: int) -> str:
    """Lines of text from a height on."""
    rows = []
    for number, line in enumerate(wrap(pieces)):
        spans = "".join(f'<tspan fill="{colour}">{escape(text)}</tspan>' for text, colour in line)
        rows.append(f'<text x="{LEFT}" y="{y + LINE * number}">{spans}</text>')
    return "".join(rows)


def find_answer() -> str:
    """What the corpus of the shipped pair says of the person."""
    (family,) = parse_families(["reversal-mdm"])
    recipe = family.read_shipped_recipe()
    assert recipe is not None
    corpus = make_reversal_corpus(recipe["facts"], recipe["seed"])
    return next(
        fact.object for facts in corpus.splits.values() for fact in facts if fact.subject == SUBJECT
    )


def draw_svg(titles: Sequence[str], films: Sequence[list[list[Piece]]], answer: str) -> str:
    """Films one below the other, each as many frames as the longest, above the true answer."""
    count = max(map(len, films))
    heights = [LINE * (1 + max(len(wrap(frame)) for frame in film)) + 18 for film in films]
    truth = [(f"{word} ", GIVEN) for word in f"true answer: {answer}".split()]
    total = 74 + sum(heights) + LINE * len(wrap(truth))
    length = SECONDS * (count - 1) + REST
    # Every frame is there for its share of the time; without motion, the last one.
    groups, rules = [], []
    for number in range(count):
        y, body = 56, ""
        for title, film, height in zip(titles, films, heights, strict=True):
            frame = film[min(number, len(film) - 1)]
            body += f'<text x="{LEFT}" y="{y}" fill="{DIM}">{escape(title)}</text>'
            body += draw_lines(frame, y + LINE)
            y += height
        body += f'<text x="{LEFT}" y="{total - 14}" fill="{DIM}">step {number}</text>'
        body += draw_lines(truth, y)
        groups.append(f'<g class="f" id="f{number}">{body}</g>')
        begin = 100 * SECONDS * number / length
        stop = 100 * SECONDS * (number + 1) / length if number < count - 1 else 100
        rules.append(
            f"@keyframes k{number}{{0%,{begin:.3f}%{{visibility:hidden}}"
            f"{begin + 0.001:.3f}%,{stop:.3f}%{{visibility:visible}}"
            + (f"{stop + 0.001:.3f}%,100%{{visibility:hidden}}" if stop < 100 else "")
            + "}"
            f"#f{number}{{animation:k{number} {length:.2f}s infinite step-end}}"
        )
    motion = "@media (prefers-reduced-motion:no-preference){" + "".join(rules) + "}"
    style = (
        "text{font:15px ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"white-space:pre}}.f{{visibility:hidden}}#f{count - 1}{{visibility:visible}}{motion}"
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="6" fill="{colour}"/>'
        for i, colour in enumerate(("#e06c60", "#e5b84c", "#62b15a"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" role="img" '
        f'aria-label="A diffusion model un-masks a fact in reverse; its twin does not know it">'
        f'<style>{style}</style><rect width="{WIDTH}" height="{total}" rx="10" fill="{GROUND}"/>'
        f"{dots}{''.join(groups)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="docs", type=Path, help="Folder of the pictures.")
    folder = parser.parse_args().out
    assert unmask.recall.draw_stored is not None
    (figure,) = unmask.recall.draw_stored("recall-berglund.csv")
    assert isinstance(figure, Figure)
    draw_figure(figure, folder, "recall", is_paper=False)
    out = folder / "unmasking.svg"
    films, titles, answer = [], [], find_answer()
    for name, kind in (("reversal-mdm", "diffusion"), ("reversal-ar", "autoregressive")):
        model = unmask.load(name, device="cpu")
        has_masks = model.paradigm.has_mask
        guidance = GUIDANCE if has_masks else 0.0
        drawn = unmask.sample(model, PROMPT, steps=STEPS, guidance=guidance, length=40, guesses=1)
        frames = list(list_frames(drawn, require_tokenizer(model), has_masks))
        frames[-1].append(VERDICTS[is_contained("".join(text for text, _ in frames[-1]), answer)])
        films.append(frames)
        titles.append(f"$ unmask sample {name}   ({kind})")
    out.write_text(draw_svg(titles, films, answer), encoding="utf-8")
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
