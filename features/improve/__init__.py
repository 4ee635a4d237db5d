"""The improvement loop of the lab, run beside a gateway (docs/improve.md)."""
