"""Names of options elsewhere lead to options that there are."""

import re

import pytest

from vagen.config.errors import ANY_KEY, key_paths
from vagen.config.foreign import FOREIGN, native
from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.envs.config import EnvConfig

OURS = {
    ".".join((*prefix, *path))
    for prefix, model in (
        ((), ExperimentConfig),
        (("infra",), InfraConfig),
        (("envs", ANY_KEY, "env_config"), EnvConfig),
    )
    for path in key_paths(model)
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_named_instead_exists_and_the_name_itself_does_not(name: str) -> None:
    sections = {key.rpartition(".")[0] for key in OURS}
    meant = [word for word in re.findall(r"`([^`]+)`", FOREIGN[name]) if "." in word]
    for word in meant:
        key = word.partition("=")[0]
        assert key in OURS or key in sections or key == "infra.verl.extra", word
    assert name not in OURS
    assert native(tuple(name.split("."))) == FOREIGN[name]


def test_a_name_that_nobody_has_leads_nowhere() -> None:
    assert native(("algorithm", "lamda")) is None
    assert native(("rollout",)) is None
