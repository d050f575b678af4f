"""The `autopilot` command: everything over HTTP, for people at a terminal and for programs."""
