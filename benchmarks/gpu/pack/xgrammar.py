"""Stands in for xgrammar, which vLLM imports and calls only for structured output."""


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
