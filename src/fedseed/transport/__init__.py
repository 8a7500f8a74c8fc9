"""What carries bytes between a coordinator and its clients; it knows no rounds."""
