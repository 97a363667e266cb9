"""Write the dashboards of examples/monitoring: python -m tests.monitoring.dashboards."""

from __future__ import annotations

from tests.monitoring.dashboards.files import files

if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
