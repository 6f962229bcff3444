"""Success rules of adapted environments, as text without code.

A rule is a conjunction of conditions with `and`: `terminated`, `truncated`, `not terminated`, a
comparison such as `reward > 0.5`, `return >= 200`, `steps < 40` (the last reward, their sum, the
number of actions) or `info.KEY > 0`, or `info.KEY` for True in the environment's info. A missing
key is not True, and comparisons with it are False.
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
"""Values of `reward`, `return`, `steps`, `terminated`, `truncated`, and of info as `info.KEY`."""
Rule = Callable[[Facts], bool]


def read_rule(text: str) -> Rule:
    """Parses a rule into a test.

    The test raises `AnswerError` for a key of the wrong type.

    Raises:
        ValueError: A condition is invalid.
    """
    conditions = [_read_condition(part.strip()) for part in re.split(r"\band\b", text)]
    return lambda facts: all(condition(facts) for condition in conditions)


def least(text: str) -> dict[str, float]:
    """Minimum `return` and `steps` of a rule.

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
