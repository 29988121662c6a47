"""Numbers that others published, to stand beside ours; each table names its source."""

STUDY_SOURCE = (
    "Rai 2025, How is bidirectional information retrieved and generated in masked diffusion "
    "language models?, Table 3: SMDM-1028M fine-tuned on Berglund's set, guidance 0.8, context 52"
)
STUDY_RECALL: dict[str, dict[int, float]] = {
    "d2p_same": {1: 91.3, 2: 97.0, 4: 96.3, 8: 97.3, 16: 98.0, 32: 97.7},
    "d2p_reverse": {1: 0.0, 2: 0.7, 4: 17.0, 8: 27.3, 16: 31.0, 32: 29.7},
    "p2d_same": {1: 0.0, 2: 2.3, 4: 25.0, 8: 37.7, 16: 42.0, 32: 43.0},
    "p2d_reverse": {1: 40.3, 2: 79.0, 4: 87.7, 8: 87.3, 16: 88.3, 32: 90.0},
}
"""Contained match in percent, by split and sampling steps."""
