"""Who the workers are: a list, a file, a name. A source is read again and again."""

from engine.fleet.discovery.base import DiscoveryError, Source
from engine.fleet.discovery.dns import Resolved
from engine.fleet.discovery.file import Written
from engine.fleet.discovery.listed import Listed

__all__ = ["DiscoveryError", "Listed", "Resolved", "Source", "Written"]
