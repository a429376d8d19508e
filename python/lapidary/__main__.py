"""``python -m lapidary``: the command ``lapidary``."""

from .command import main

main()
