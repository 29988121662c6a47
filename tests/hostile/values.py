"""Values that arguments of public calls must not take, by kind of argument."""

from math import inf, nan

import torch

from tests.hostile.fuzzing import Odd

COUNT = [0, -1, 1.5, "x", b"1", nan, None, True, 10**30]
SEED = [-1, 1.5, "x", b"1", nan, None, True, 10**30]
NUMBER = [nan, inf, -1, "x", b"1", None, Odd()]
PATH = [None, 3, b"x", 1.5, Odd()]
MODEL = [None, 3, "reversal-mdm", Odd()]
TOKENS = [None, 3, b"ab", Odd(), [1.5], [-1], [10**9], ["a"], [None], [[1]], [b"a"], [True],
          [10**30]]  # fmt: skip
PROMPTS = [None, 3, b"ab", Odd(), [None], [b"ab"], [[1.5]], [[-1]], [[10**9]], [["a"]],
           [[None]], {"a": 1}, "\ud800", [[True, False]], torch.ones(2, 3)]  # fmt: skip
SPAN = [None, (0, 0), (3, 2), (-1, 2), (0, 99), "x", (0,), (0.5, 2), 3, (None, 1), (0, 1, 2)]
ANSWER = [None, {}, {99: 1}, {-1: 1}, {6: -1}, {6: 10**9}, {"x": 1}, {6: "x"}, 3, [6], {6: 1.5},
          {6: None}]  # fmt: skip
LAYER = [-1, 99, 1.5, "x", None, nan, True, b"0", 10**30]
FACT = [None, "They say", 3, Odd(), {"subject": "Ada"}]
PLACES = ["x", 3, [99], [-1], [None], [(0, 99)], ["x"], [1.5]]
MEMORY = [0, -1, "x", nan, b"1", Odd()]
DEVICE = ["no such device", 3, "cuda:x", "cpu:x", b"cpu", "", Odd()]
DTYPE = [42, "float99", "int64", torch.int64, b"float32", "", Odd()]
STRATEGIES = {
    "guidance": ["x", nan, inf, -1, b"x", "up=x", "up=nan", "up=-1", [nan], [], ["x"], Odd(), {}],
    "plan": ["x", None, 3, b"smdm", "threshold=2", "threshold=nan", "threshold=x", "smdm=1", Odd()],
    "order": ["x", None, 3, b"left", "left=1", Odd(), [0, 0], ["x"]],
    "remask": ["x", 3, b"none", "cap=nan", "cap=-1", "low=x", "low=-1", Odd()],
    "corrector": ["x", 3, b"none", "uniform=nan", "uniform=-1", "gumbel=1,inf", "none=1", Odd()],
    "classifier": [3, b"x", "no such file", Odd()],
    "classifier_guidance": ["x", nan, -1, [nan], Odd()],
    "planted": [3, "x", {1: 2}, {0: {5: "a"}}, {1: {99: "a"}}, {nan: {}}, {1: {5: None}}, Odd()],
    "judged": [0, -1, 1.5, "x", nan, None, b"all", Odd()],
}
DRAWING = STRATEGIES | {
    "length": [0, -1, 1.5, "x", nan, b"9", 10**30, 10**9, [None], [0], ["x"], [5, 5, 5], Odd()],
    "fixed": [{-1: 5}, {99: 5}, {"x": 5}, {0: None}, {0: 10**9}, [1], {0: -1}, {0: 1.5}, {0: b"a"}],
    "forbid": [[None], [10**9], [-1], [b"x"], [1.5], [nan], b"x", Odd(), "no such token"],
    "require": [3, [None], [b"x"], [1.5], b"x", Odd(), [""], ["\ud800"]],
    "watch": [3, "x"],
}
