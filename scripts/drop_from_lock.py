"""Remove torch, its CUDA parts and disabled overrides from a lock file, in place."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main(path: Path) -> None:
    blocks = re.split(r"\n(?=[a-z])", path.read_text(encoding="utf-8").strip())
    kept = [block for block in blocks if not _is_dropped(block)]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _is_dropped(block: str) -> bool:
    first = block.split("\n", 1)[0]
    return first.startswith(("torch==", "nvidia-", "cuda-")) or "sys_platform == 'never'" in first


if __name__ == "__main__":
    main(Path(sys.argv[1]))
