"""The `nodeside` command, also as `python -m nodeside`."""

from __future__ import annotations


def main() -> None:
    """Import and run the command line; Ctrl-C during the import exits with 130."""
    try:
        from nodeside import cli
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    cli.main()


if __name__ == "__main__":
    main()
