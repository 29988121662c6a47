"""A method for `unmask bench`: states count as much as those of different questions differ."""


def spread(task):
    """By part, "resid", "attn" and "mlp", a score for each position and layer [L, layers]."""
    states, scores = task.capture(), task.blank()
    for part, layer, site in task.list_sites():
        scores[part][:, layer] = states[site].std(0).norm(dim=-1)  # [questions, L, D] to [L]
    return scores
