"""Endpoints on the network: how they are asked, how often, and what is done when they fail."""

from vagen.clients.client import DEADLINE, Client, Usage
from vagen.clients.errors import EndpointError, NoAnswerError, Reason
from vagen.clients.http import ConfigLocation, HttpEndpoint

__all__ = [
    "DEADLINE",
    "Client",
    "ConfigLocation",
    "EndpointError",
    "HttpEndpoint",
    "NoAnswerError",
    "Reason",
    "Usage",
]
