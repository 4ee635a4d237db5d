"""Storage of speculation rules that a canary promoted."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.files import write_json
from eaglegate.engine.speculation.policy.policy import FlagMode, SpeculationFlag, SpeculationRules

log = logging.getLogger(__name__)


class PromotedRules:
    """Remembers promoted rules, which replace those of the command line.

    They are stored in the folder of the promoted draft. Without a folder, they are lost when the
    process ends.
    """

    def __init__(self, folder: str | None, rules: SpeculationRules) -> None:
        self._path = None if folder is None else Path(folder).expanduser() / "rules.json"
        self._rules = rules
        self._configured = describe_rules(rules)

    def choose(self) -> SpeculationRules:
        """Return the rules for a gateway that starts."""
        rules = self.recall()
        if rules is not None:
            log.warning("serving the promoted speculation rules: %s", describe_rules(rules))
        return rules or self._rules

    def remember(self, rules: SpeculationRules) -> None:
        if self._path is None:
            return
        document = {"configured": self._configured, "promoted": describe_rules(rules)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, document)
        except OSError as error:
            log.error("cannot store the promoted rules: %s", error)

    def recall(self) -> SpeculationRules | None:
        """Read the promoted rules; None if there are none or the configured rules have changed.

        Key depths are not included.
        """
        if self._path is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["configured"] == self._configured:
                return read_rules(document["promoted"])
        return None

    def forget(self) -> None:
        """Delete the promoted rules after an operator set others: a restart uses the configured
        rules.
        """
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.error("cannot delete the promoted rules: %s", error)


def describe_rules(rules: SpeculationRules) -> dict[str, Any]:
    """Describe the rules that differ from the defaults as JSON values, without key depths."""
    values, defaults = asdict(rules), asdict(SpeculationRules())
    del values["key_depths"]
    return {name: value for name, value in values.items() if value != defaults[name]}


def read_rules(description: dict[str, Any]) -> SpeculationRules:
    """Read the output of ``describe_rules``. Raises KeyError, TypeError and ValueError."""
    flags = {name: read_flag(flag) for name, flag in description.get("workload_flags", {}).items()}
    return SpeculationRules(
        flag=read_flag(description.get("flag", {})),
        workload_flags=flags,
        depth=description.get("depth"),
        workload_depths=description.get("workload_depths", {}),
        lookup=description.get("lookup"),
    )


def read_flag(description: dict[str, Any]) -> SpeculationFlag:
    return SpeculationFlag(**description | {"mode": FlagMode(description.get("mode", FlagMode.ON))})
