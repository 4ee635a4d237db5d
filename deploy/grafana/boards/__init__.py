"""The dashboards, one file each."""

from __future__ import annotations

from boards.engine import ENGINE
from boards.overview import OVERVIEW
from boards.pods import PODS
from boards.speculation import SPECULATION
from boards.tools import TOOLS
from boards.workers import WORKERS

DASHBOARDS = (OVERVIEW, SPECULATION, TOOLS, ENGINE, WORKERS, PODS)
