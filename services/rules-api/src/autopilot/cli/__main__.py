"""`autopilot` and `python -m autopilot.cli`."""

from __future__ import annotations

from autopilot.cli.app import app


def main() -> None:
    """Run the command that the arguments name and exit with its code."""
    app(prog_name="autopilot")


if __name__ == "__main__":
    main()
