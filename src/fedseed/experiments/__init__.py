"""Many runs at a time: sweeps over recipes, the processes they run in, and what a recipe will cost."""
