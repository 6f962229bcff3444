"""`vagen env`: writes a new environment; shows one, checks its contract, or serves it."""

import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from vagen.cli.common import command
from vagen.config import InfraConfig
from vagen.config.errors import ConfigError, validate
from vagen.config.layers import Layers, parse_override
from vagen.config.yaml_io import read_yaml
from vagen.envs import ContractError, check_env, get_environment, make
from vagen.envs.base import AgentEnv
from vagen.envs.template import write_environment

if TYPE_CHECKING:
    from vagen.report.environment import Portrait


def env(options: Namespace) -> None:
    """Plays an environment and prints which parts of the contract it keeps; or all one would know
    of it, with a page of pictures. Or writes a new one, or serves one.

    Raises:
        EnvironmentNameError: No environment of this name can be written.
        ConfigError: An option is unknown, has an impossible value, or is not `key=value`; or a
            file is no YAML.
        ContractError: The environment breaks the contract, or cannot be made.
    """
    if options.action == "init":
        folder = Path(options.to or options.name)
        env_name = write_environment(options.name, folder)
        print(*sorted(folder.iterdir()), "", "try it:", sep="\n")
        print(f"  export PYTHONPATH={shlex.quote(str(folder.absolute()))}")
        print(f"  vagen env check {env_name}")
        print(f"  {shlex.join(['python', '-m', 'pytest', str(folder)])}")
        print(f"  {shlex.join(['vagen', 'run', str(folder / f'{options.name}.yaml')])}")
        return
    if options.action == "check" and options.openenv:
        from vagen.interop.openenv_check import check_package

        check_package(Path(options.name), options.url)
        return
    layers = Layers({})
    for text in options.config + options.settings:
        layers.lay(parse_override(text) if "=" in text else read_yaml(Path(text)))
    config_class = get_environment(options.name).config_class
    try:
        made = make(options.name, validate(config_class, layers.tree, layers.place_of))
    except ValueError:
        raise
    except Exception as error:  # whatever a class of one's own raises
        reason = f"{type(error).__name__}: {error}"
        raise ContractError(f"{options.name} cannot be made: {reason}") from error
    if options.action == "serve":
        made.close()
        if not options.openenv:
            raise ConfigError(
                "say which protocol: --openenv; python -m vagen.service serves runs of vagen"
            )
        from vagen.interop.openenv_server import serve

        serve(options.name, made.config.model_dump(mode="json"), options.host, options.port)
        return
    unchecked: list[str] = []
    try:
        if options.action == "show":
            _show(made, options)
        else:
            unchecked = check_env(
                made,
                report=lambda sentence: print(f"✓ {sentence}", flush=True),
                remark=lambda sentence: print(f"· {sentence}", flush=True),
                seconds=options.seconds,
            )
    finally:
        made.close()
    kept = f"what was checked ({len(unchecked)} parts were not) of " if unchecked else ""
    print(f"{options.name} keeps {kept}the contract of vagen.envs.AgentEnv")


def _show(made: AgentEnv, options: Namespace) -> None:
    """Prints what an environment is, and writes the page; raises what breaks the contract last."""
    from vagen.report.environment import portray, write_portrait

    contract: list[tuple[bool, str]] = []
    problem: ContractError | None = None
    try:
        check_env(made, report=lambda sentence: contract.append((True, sentence)))
    except ContractError as error:
        contract.append((False, str(error)))
        problem = error
    try:
        portrait = portray(options.name, made)
    except ContractError as error:
        raise problem or error from None
    _print(portrait)
    print("\ncontract")
    for kept, sentence in contract:
        print(f"  {'✓' if kept else '✗'} {sentence}")
    name = re.sub(r"[^\w.-]+", "-", options.name)
    folder = Path(options.to or Path(InfraConfig().output_dir, "environments", name))
    print(f"\n{write_portrait(portrait, folder, contract)}  ({command('view', folder)})")
    if problem is not None:
        raise problem


def _print(portrait: "Portrait") -> None:
    print(f"prompt\n{_indented(portrait.prompt)}\n\nlevels")
    for level in portrait.levels:
        print(f"  seed {level.seed}: {level.truth}\n{_indented(level.shown['text'], 4)}")
    if portrait.expert is not None:
        print("\nthe expert's episode")
        for response, info in zip(
            portrait.expert.responses, portrait.expert.infos[1:], strict=True
        ):
            paid = "  ".join(f"{part} {value:+.2f}" for part, value in info["rewards"].items())
            print(f"{_indented(response)}\n    {paid}{'  success' if info['success'] else ''}")
    print("\nsuccess")
    for success in portrait.successes:
        print(f"  {success}")


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(f"{' ' * by}{line}" for line in text.splitlines())
