"""What both ends of the wire share beside the generated code; imports `v1` and `errors` alone."""
