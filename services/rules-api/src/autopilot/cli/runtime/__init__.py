"""A complete runtime for any command-line agent: it claims tasks and runs a command for each (S11.4)."""
