"""Clients of network endpoints: requests, rate limits and failures."""

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
