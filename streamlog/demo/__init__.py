"""The demonstration behind `streamlog demo`: a real node, real log lines, a real kill -9."""
