"""What needs Prometheus runs where `make test-prometheus` asks for it."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TEST_PROMETHEUS") == "yes" else ["test_prometheus.py"]
