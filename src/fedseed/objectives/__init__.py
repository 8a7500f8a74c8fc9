"""What models are trained and judged by: losses and measurements for each kind of example."""
