"""The `nodeside` command, also as `python -m nodeside`."""

from __future__ import annotations


def main() -> None:
    """Import the command line and run it; a Ctrl-C in the middle of the import is no bug."""
    try:
        from nodeside import cli
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    cli.main()


if __name__ == "__main__":
    main()
