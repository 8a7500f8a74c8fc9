"""One run: its recipe, its main loop, its folder, and how it is taken up again."""
