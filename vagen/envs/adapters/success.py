"""When an episode of a foreign environment counts as solved: a rule in words, not code.

A rule is conditions joined by `and`: `terminated`, `truncated`, `not terminated`, a comparison such
as `reward > 0.5`, `return >= 200`, `steps < 40` (the last reward, their sum, the actions so far) or
`info.KEY > 0`, or `info.KEY` for True in the environment's info. A key that the info does not hold
is not True, and no comparison with it holds.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from vagen.envs.answers import flag, number

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_KEY = r"info\.[A-Za-z_]\w*"
_COMPARISON = re.compile(rf"(reward|return|steps|{_KEY})\s*(>=|<=|==|>|<)\s*(-?\d+(?:\.\d+)?)")
_FLAG = re.compile(rf"(not\s+)?(terminated|truncated|{_KEY})")

Facts = Mapping[str, Any]
"""`reward`, `return`, `steps`, `terminated`, `truncated`, and the keys of `info` as `info.KEY`."""
Rule = Callable[[Facts], bool]


def read_rule(text: str) -> Rule:
    """The test that a rule stands for.

    The test raises `AnswerError` where a key is no flag, or is compared and no number.

    Raises:
        ValueError: If a condition cannot be read.
    """
    conditions = [_read_condition(part.strip()) for part in re.split(r"\band\b", text)]
    return lambda facts: all(condition(facts) for condition in conditions)


def least(text: str) -> dict[str, float]:
    """What a rule asks for at least, of `return` and `steps`.

    >>> least("terminated and return >= 100")
    {'return': 100.0}
    """
    found = (_COMPARISON.fullmatch(part.strip()) for part in re.split(r"\band\b", text))
    bounds = [match.groups() for match in found if match]
    return {
        name: float(bound)
        for name, sign, bound in bounds
        if name in ("return", "steps") and sign in (">=", ">", "==")
    }


def _read_condition(text: str) -> Rule:
    if match := _COMPARISON.fullmatch(text):
        name, sign, bound = match.groups()
        compare, wanted = _OPERATORS[sign], float(bound)
        return lambda facts: name in facts and compare(number(facts[name], name), wanted)
    if match := _FLAG.fullmatch(text):
        negated, name = match.groups()
        return lambda facts: flag(facts.get(name, False), name) != bool(negated)
    raise ValueError(
        f"{text!r} is no condition; write `terminated`, `not truncated`, `reward > 0`, "
        "`return >= 200`, `steps < 40`, `info.KEY` or `info.KEY > 0`, joined by `and`"
    )
