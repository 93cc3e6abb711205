"""What rankwise claims about speed and memory, measured: one claim a file."""
