"""Every metric group, one class each. A new metric is a class and a row of its module's ``GROUPS``.

No call site is needed, because ``eaglegate.observability.telemetry`` reports to every group.
"""

from eaglegate.observability.metrics import engine, requests, sharing, speculation

GROUPS = requests.GROUPS + speculation.GROUPS + engine.GROUPS + sharing.GROUPS
