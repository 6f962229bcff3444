"""What verifiers looks for under the id `vagen-verifiers`; ids name modules without a dot."""

from vagen.interop.verifiers_env import VagenEnv, VagenTaskset

__all__ = ["VagenEnv", "VagenTaskset"]
