"""MLflow: runs, metrics, files, and the model registry.

Importing this package does not import MLflow; its functions do.
"""

from vagen.tracking.provenance import git_commit, package_versions
from vagen.tracking.registry import (
    ALIAS,
    Example,
    Registration,
    RegistrationError,
    fetch_registered,
    holder_results,
    load_registered,
    record_deployment,
    register_model,
)
from vagen.tracking.server import TrackingError, default_uri, open_client
from vagen.tracking.stats import (
    GainOfSeeds,
    PairedGain,
    attempts_ci95,
    binomial_ci95,
    levels_needed,
    paired_bootstrap,
    paired_seeds,
    pass_at_k,
    success_ci95,
)
from vagen.tracking.tracker import Tracker

__all__ = [
    "ALIAS",
    "Example",
    "GainOfSeeds",
    "PairedGain",
    "Registration",
    "RegistrationError",
    "Tracker",
    "TrackingError",
    "attempts_ci95",
    "binomial_ci95",
    "default_uri",
    "fetch_registered",
    "git_commit",
    "holder_results",
    "levels_needed",
    "load_registered",
    "open_client",
    "package_versions",
    "paired_bootstrap",
    "paired_seeds",
    "pass_at_k",
    "record_deployment",
    "register_model",
    "success_ci95",
]
