"""Deploys the agent of a run on Kubernetes, if it plays there as it did in its evaluation."""

from vagen.deploy.agent import Agent, agent_of
from vagen.deploy.deployment import Deployed, deploy
from vagen.deploy.gate import Verdict
from vagen.deploy.rollout import undeploy

__all__ = ["Agent", "Deployed", "Verdict", "agent_of", "deploy", "undeploy"]
