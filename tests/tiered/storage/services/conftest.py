"""What needs these services runs where `make test-remote-storage` asks for it."""

from __future__ import annotations

import os

collect_ignore = (
    [] if os.environ.get("TEST_REMOTE_STORAGE") == "yes" else ["test_hdfs_azure_gcs.py"]
)
