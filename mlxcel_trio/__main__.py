"""``python -m mlxcel_trio`` is ``mlxcel``."""

import sys

from mlxcel_trio.cli import main

if __name__ == "__main__":
    sys.exit(main())
