"""The command line, a file for each group of commands."""

from typing import Any


def main() -> Any:
    """Run the command `fedseed`."""
    from fedseed.cli.app import main

    return main()
