"""Why did it, or did it not, run: a walk along what is written down, to the first thing that stopped it (S13.3)."""
