"""What every test needs: no telemetry, so that no run waits for a network."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
