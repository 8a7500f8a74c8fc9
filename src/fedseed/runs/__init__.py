"""One run: its recipe, its main loop, its folder, and how an interrupted run resumes."""
