"""The entry point of `python -m nodeside.toolkit_sidecar` and of toolkit.pyz."""

from __future__ import annotations

import sys

from nodeside.toolkit_sidecar.cli import main

sys.exit(main())
