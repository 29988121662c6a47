"""Distributed alignment search: laws, a loop written out, and networks of known mechanism."""

from dataclasses import replace

import pytest
import torch

from unmask import UserError
from unmask.compiled.compiler import Directions
from unmask.compiled.mechanisms import build_compiled
from unmask.experiments.subspaces.exchanges import TRAINED, Condition, make_exchanges, split_facts
from unmask.representation.subspaces import (
    LaidOut,
    Search,
    clip_ranks,
    draw_basis,
    draw_network,
    lay_out_exchanges,
    move_anywhere,
    move_inside,
    move_whole,
    name_entry,
    say_targets,
    search_basis,
)

FACT = Condition("fact", "across", "subject")
SEARCH = Search(ranks=(8,), updates=80, rows=32, rate=0.05)


def lay_out(mechanism: str, permuted: bool = False, condition: Condition = FACT) -> list[LaidOut]:
    """What is searched on, and other phrasings of it, after the layer of the store."""
    compiled = build_compiled(mechanism)
    halves = split_facts(compiled.model, compiled.facts, (), 8, 2, 12, is_split=False)
    pairs = [
        [each for _, each in make_exchanges(halves, pool, condition, 14, 0, permuted)]
        for pool in (halves.fitted, halves.tests[TRAINED])
    ]
    return [lay_out_exchanges(compiled.model, own, name_entry(compiled.model, 1)) for own in pairs]


@pytest.fixture(scope="module")
def one_store() -> list[LaidOut]:
    return lay_out("one store")


@pytest.fixture(scope="module")
def smooth() -> LaidOut:
    """Exchanges of one state in a network that learned nothing: in one whose neurons are steps,
    rounding grows too fast for two loops to be compared."""
    compiled = build_compiled("one store")
    model = draw_network(compiled.model, 0)
    model.net.double()
    halves = split_facts(model, compiled.facts, (), 8, 1, 12)
    condition = Condition("fact", "across", "answer")
    made = [each for _, each in make_exchanges(halves, halves.fitted, condition, 3, 0)]
    return lay_out_exchanges(model, made, name_entry(model, 1))


def share(laid: LaidOut, move) -> float:
    return sum(brings for brings, _ in say_targets(laid, move)) / len(laid)


def test_a_whole_basis_is_plain_interchange_and_ranks_are_nested(one_store):
    laid, row = one_store[1], torch.zeros(1, dtype=torch.long)
    square = draw_basis(laid.width, laid.width, 0)
    changes = laid.changes[:3]
    rows = row.expand(3)
    torch.testing.assert_close(move_inside(square, laid.width)(changes, rows), changes)
    numbers = torch.arange(4)
    plain = laid.predict(numbers, move_whole)
    whole = laid.predict(numbers, move_inside(square, laid.width))
    torch.testing.assert_close(whole, plain, atol=1e-4, rtol=1e-4)
    # A row of rank 2 is given the first two columns alone, whatever stands in its batch.
    ranks = torch.tensor([2, 5, 0])
    moved = move_inside(square, ranks)(changes, torch.arange(3))
    alone = changes[0] @ square[:, :2] @ square[:, :2].T
    torch.testing.assert_close(moved[0], alone)
    assert not moved[2].any()


def test_plain_interchange_is_a_run_with_the_sources_state(one_store):
    """Against a hook on the block that writes the source's states, pair by pair."""
    laid = one_store[1]
    model, number = laid.model, 3
    base, own = laid.tokens[laid.bases[number]][None], laid.owners == number
    site = f"layers.{int(laid.site.split('.')[1])}.resid_in"
    with torch.no_grad(), model.net.capture(site) as taken:
        model.net(base)
    there = taken[site][0, laid.places[own]] + laid.changes[own]

    def hook(_block, given):
        x = given[0].clone()
        x[0, laid.places[own]] = there
        return (x, *given[1:])

    handle = model.net.block(2).register_forward_pre_hook(hook)
    logits = model.net(base)[0, laid.reads[number]]
    handle.remove()
    ours = laid.predict(torch.tensor([number]), move_whole)[0]
    assert int(ours.argmax()) == int(logits.argmax()) == int(laid.targets[number])


def test_a_search_is_the_loop_written_out(smooth):
    """Five updates on all exchanges: the loss, its gradient and Adam's steps, by hand."""
    laid, width = smooth, smooth.width
    start = draw_basis(width, 3, 7).double()
    settings = Search(ranks=(3,), updates=5, rows=len(laid), rate=0.03)
    result = search_basis(laid, settings, start)
    free = start.clone().requires_grad_()
    optimiser, losses = torch.optim.Adam([free], lr=0.03), []
    net, owners = laid.model.net, laid.owners
    for _ in range(5):
        basis, total = torch.linalg.qr(free).Q, torch.zeros(())
        for number in range(len(laid)):
            x = laid.streams[laid.bases[number]].clone()
            for at, change in zip(
                laid.places[owners == number], laid.changes[owners == number], strict=True
            ):
                x[at] = x[at] + sum((change @ column) * column for column in basis.T)
            logits = net.unembed(net.run_layers(x[None], 2))[0, laid.reads[number]]
            logits[laid.model.mask_id] = -torch.inf
            total = total - logits.log_softmax(-1)[laid.targets[number]] / len(laid)
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        losses.append(float(total.detach()))
    torch.testing.assert_close(
        torch.tensor(result.losses), torch.tensor(losses), atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(result.basis, torch.linalg.qr(free.detach()).Q, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        result.basis.T @ result.basis, torch.eye(3).double(), atol=1e-9, rtol=0
    )


def test_one_store_has_a_subspace_of_the_fact_and_it_moves_what_the_program_reads(one_store):
    """Across directions, in other phrasings; the rules read the variable `fact` of the program."""
    fitted, others = one_store
    basis = search_basis(fitted, SEARCH).basis
    assert share(others, move_whole) == 1.0
    assert share(others, move_inside(basis, 8)) >= 0.95
    random = draw_basis(others.width, 8, 5)
    assert share(others, move_inside(random, 8)) <= 0.05
    assert share(others, move_anywhere(basis, 8, 0)) <= 0.05
    program = build_compiled("one store").program
    directions = Directions(program, 1.0, True, 0)

    def overlap(found: torch.Tensor, variable: str) -> float:
        """The share of what a variable differs by between the runs that the exchange moves."""
        held = directions[variable].T.float()
        wanted, moved = others.changes @ held, others.changes @ found @ (found.T @ held)
        return float((wanted * moved).sum() / wanted.square().sum())

    assert 0.9 <= overlap(basis, "fact") <= 1.1 and overlap(random, "fact") <= 0.2
    # The name stands there as well, and nothing reads it any more.
    assert overlap(basis, "name") <= 0.4


def test_two_stores_have_none():
    """Nothing beyond what the same search makes of permuted labels, which mean nothing."""
    aligned, permuted = lay_out("two stores"), lay_out("two stores", permuted=True)
    shares = [
        share(tests, move_inside(search_basis(fitted, SEARCH).basis, 8))
        for fitted, tests in (aligned, permuted)
    ]
    assert share(aligned[1], move_whole) == 0.0
    assert shares[0] - shares[1] < 0.2


def test_noise_is_as_long_as_what_it_stands_for(one_store):
    laid, basis = one_store[1], draw_basis(one_store[1].width, 4, 0)
    rows = torch.zeros(len(laid.changes), dtype=torch.long)
    inside, noise = (
        make(laid.changes, rows) for make in (move_inside(basis, 4), move_anywhere(basis, 4, 1))
    )
    torch.testing.assert_close(inside.norm(dim=-1), noise.norm(dim=-1))
    cosine = torch.nn.functional.cosine_similarity(inside, noise, dim=-1)
    assert cosine.abs().mean() < 0.3


def test_an_untrained_network_has_the_shape_and_nothing_else():
    model = build_compiled("one store").model
    drawn = draw_network(model, 0)
    assert drawn.net.config == model.net.config
    own, other = (dict(each.net.named_parameters())["head.weight"] for each in (model, drawn))
    assert own.shape == other.shape and not torch.equal(own, other)
    assert torch.equal(other, dict(draw_network(model, 0).net.named_parameters())["head.weight"])


def test_labels_follow_from_variables():
    """The base's answer becomes the source's fact, or its direction, or the source's answer."""
    compiled = build_compiled("one store")
    split = [fact for fact in compiled.facts if fact.direction == "p2d"]
    halves = split_facts(compiled.model, split, compiled.facts, 8, 1, 12)
    tokenizer = compiled.model.require_tokenizer()
    by_prompt = {tuple(tokenizer.encode(fact.prompt).ids): fact for fact in compiled.facts}
    mask = compiled.model.require_mask()

    def find(tokens):
        return next(
            by_prompt[tokens[:n]] for n in range(len(tokens), 0, -1) if tokens[:n] in by_prompt
        )

    asked = {(fact.fact_id, fact.direction): fact.completion.split() for fact in compiled.facts}
    for variable in ("fact", "direction", "answer"):
        condition = Condition(variable, "across", "answer")
        for base, each in make_exchanges(halves, halves.fitted, condition, 3, 0):
            source = find(each.source)
            assert source.direction != base.direction and source.fact_id != base.fact_id
            key = {
                "fact": (source.fact_id, base.direction),
                "direction": (base.fact_id, source.direction),
                "answer": (source.fact_id, source.direction),
            }[variable]
            word = each.read - len(tokenizer.encode(base.prompt).ids)
            assert tokenizer.decode([each.target]) == asked[key][word]
            assert tokenizer.decode([each.own]) == base.completion.split()[word]
            assert each.target != each.own and each.base[each.read] == mask
            assert each.places == (each.read,)
    people = {
        half: {fact.fact_id for own in pool.prompts.values() for fact in own}
        for half, pool in halves.tests.items()
    }
    assert not set.intersection(*people.values()) and len(set.union(*people.values())) == 8


def test_permuted_labels_are_another_facts():
    compiled = build_compiled("one store")
    halves = split_facts(compiled.model, compiled.facts, (), 8, 1, 12, is_split=False)
    within = Condition("fact", "within", "subject")
    true, permuted = (
        {
            (each.base[:6], each.source[:6]): each
            for _, each in make_exchanges(halves, halves.fitted, within, 7, 0, is_permuted)
        }
        for is_permuted in (False, True)
    )
    shared = [(true[key], permuted[key]) for key in true.keys() & permuted.keys()]
    same = [one.target == other.target and one.read == other.read for one, other in shared]
    # Names share words, so that now and then two facts ask for one token.
    assert len(shared) > 20 and sum(same) < 0.6 * len(same)


def test_a_causal_subject_is_the_same_at_every_step():
    """Its states do not see the answer: a last step lends what the first one does."""
    compiled = build_compiled("one store", is_causal=True)
    split = [fact for fact in compiled.facts if fact.direction == "p2d"]
    halves = split_facts(compiled.model, split, compiled.facts, 8, 1, None)
    first, last = (
        lay_out_exchanges(
            compiled.model,
            [
                each
                for _, each in make_exchanges(
                    halves, halves.fitted, Condition("fact", way, "subject"), 3, 0
                )
            ],
            name_entry(compiled.model, 1),
        )
        for way in ("within", "steps")
    )
    assert torch.equal(first.changes, last.changes)


def test_mistakes_are_sentences():
    model = build_compiled("one store").model
    with pytest.raises(UserError, match="layers that read those after -1"):
        name_entry(model, 2)
    with pytest.raises(UserError, match="expected some of 1 to 15"):
        clip_ranks((16, 32), 16)
    with pytest.raises(UserError, match="no exchanges were given"):
        lay_out_exchanges(model, [], "layers.1.resid_in")
    assert clip_ranks((64, 4, 2), 16) == [2, 4]


@pytest.mark.prove  # and only where transformer-lens is installed, in an environment of its own
@pytest.mark.filterwarnings("ignore")  # transformer-lens' own
def test_searches_are_transformer_lens(smooth):
    """`fit_das` from the same start, on all exchanges at once: losses and the subspace agree."""
    hooks = pytest.importorskip("transformer_lens")
    from transformer_lens.hook_points import HookPoint
    from transformer_lens.tools.analysis import interchange as theirs

    laid, rank, net = smooth, 3, smooth.model.net

    class Hooked(hooks.HookedRootModule):
        def __init__(self):
            super().__init__()
            self.state = HookPoint()
            self.setup()

        def forward(self, tokens):
            x = self.state(net.run_layers(net.embed(tokens), 0, 2))
            return net.unembed(net.run_layers(x, 2))

    bases = laid.tokens[laid.bases]
    peer = Hooked().eval()
    # Their sources are runs; ours are given as changes: a stand-in of the collected activations.
    states = laid.streams[laid.bases, laid.places] + laid.changes
    original = theirs.collect_activations
    theirs.collect_activations = lambda *_args, **_more: states
    try:

        def read(tokens):
            first = (tokens == laid.model.mask_id).int().argmax(-1)  # they come in any order
            logits = peer(tokens)[torch.arange(len(tokens)), first].clone()
            logits[:, laid.model.mask_id] = -torch.inf
            return logits

        result = theirs.fit_das(
            peer,
            "state",
            bases,
            bases,
            laid.targets,
            read,
            rank=rank,
            base_positions=laid.places,
            epochs=20,
            batch_size=len(laid),
            lr=0.03,
            seed=3,
        )
        with torch.random.fork_rng():
            torch.manual_seed(3)
            start = theirs.LearnedSubspace(laid.width, rank).basis.detach()
    finally:
        theirs.collect_activations = original
    order = replace(SEARCH, ranks=(rank,), updates=20, rows=len(laid), rate=0.03)
    ours = search_basis(laid, order, start)
    # They turn the basis by other coordinates, so that steps differ, and what is reached does not.
    torch.testing.assert_close(ours.losses[0], result.losses[0], atol=1e-5, rtol=1e-5)
    fallen = [each[0] - each[-1] for each in (ours.losses, result.losses)]
    assert min(fallen) > 0.05 and max(fallen) < 1.2 * min(fallen)
    # One basis exchanged by both.
    with torch.no_grad():
        their_logits = theirs.intervened_logits(
            peer,
            "state",
            theirs.SubspaceInterchange(result.basis),
            bases,
            states,
            read,
            positions=laid.places,
            batch_size=len(laid),
        )
    says = [
        int(best) == int(target)
        for best, target in zip(their_logits.argmax(-1), laid.targets, strict=True)
    ]
    assert says == [
        brings for brings, _ in say_targets(laid, move_inside(result.basis.double(), rank))
    ]
