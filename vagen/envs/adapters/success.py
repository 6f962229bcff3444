"""When an episode of a foreign environment counts as solved: a rule in words, not code.

A rule is conditions joined by `and`: `terminated`, `truncated`, `not terminated`, a comparison such
as `reward > 0.5`, `return >= 200`, `steps < 40` (the last reward, their sum, the actions so far),
or `info.KEY` for a true value that the environment puts in its info.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"(reward|return|steps)\s*(>=|<=|==|>|<)\s*(-?\d+(?:\.\d+)?)")
_FLAG = re.compile(r"(not\s+)?(terminated|truncated|info\.[A-Za-z_]\w*)")

Facts = Mapping[str, Any]
"""`reward`, `return`, `steps`, `terminated`, `truncated`, and the keys of `info` as `info.KEY`."""
Rule = Callable[[Facts], bool]


def read_rule(text: str) -> Rule:
    """The test that a rule stands for.

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
        name: float(number)
        for name, sign, number in bounds
        if name in ("return", "steps") and sign in (">=", ">", "==")
    }


def _read_condition(text: str) -> Rule:
    if match := _COMPARISON.fullmatch(text):
        name, sign, number = match.groups()
        compare, bound = _OPERATORS[sign], float(number)
        return lambda facts: compare(float(facts[name]), bound)
    if match := _FLAG.fullmatch(text):
        negated, name = match.groups()
        return lambda facts: bool(facts.get(name, False)) != bool(negated)
    raise ValueError(
        f"{text!r} is no condition; write `terminated`, `not truncated`, `reward > 0`, "
        "`return >= 200`, `steps < 40` or `info.KEY`, joined by `and`"
    )
