"""Who the workers are: a list, a file, a name. A source is read again and again."""

from engine.fleet.discovery.base import DiscoveryError, WorkerSource
from engine.fleet.discovery.dns import DnsSource
from engine.fleet.discovery.file import FileSource
from engine.fleet.discovery.listed import StaticSource

__all__ = ["DiscoveryError", "DnsSource", "FileSource", "StaticSource", "WorkerSource"]
