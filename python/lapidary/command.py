"""The command ``lapidary`` of the package: the program of the same build, with the package's models."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the program; its exit status is the command's."""
    package = Path(__file__).parent
    program = package / "bin" / "lapidary"
    os.environ.setdefault("LAPIDARY_MODELS_DIR", str(package / "models"))
    os.execv(program, [sys.argv[0], *sys.argv[1:]])


if __name__ == "__main__":
    main()
