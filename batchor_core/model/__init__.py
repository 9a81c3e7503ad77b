"""What things are: pure data with no I/O, no clock and no third-party service."""
