"""Addresses are stored and shown with a run: no credentials stand in them."""

import re

from pydantic import AfterValidator

_USER = re.compile(r"(https?://)[^\s/:@'\"]+@", re.IGNORECASE)
"""A user alone is a token to a web server, and no secret to a database."""
_PASSWORD = re.compile(r"(://[^\s/:@'\"]*:)[^\s/'\"]+@")
_PARAMETER = re.compile(
    r"([?&;][\w.-]*(?:passw|pwd|token|secret|key|signature|credential)[\w.-]*=)[^\s&;'\"]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """A text with `***` for what is secret in the addresses it holds.

    >>> redact("MLflow at postgresql://me:secret@db/mlflow is away")
    'MLflow at postgresql://me:***@db/mlflow is away'
    """
    for pattern, shown in ((_USER, r"\1***@"), (_PASSWORD, r"\1***@"), (_PARAMETER, r"\1***")):
        text = pattern.sub(shown, text)
    return text


AWS_KEYS = "keys are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def no_credentials(instead: str) -> AfterValidator:
    """Rejects an address with a password, token or key in it.

    Args:
        instead: Where they are read from.
    """

    def check(address: str) -> str:
        if redact(address) != address:
            raise ValueError(f"it is stored with the run, no password may stand in it; {instead}")
        return address

    return AfterValidator(check)
