"""The jobs of the scheduler."""
