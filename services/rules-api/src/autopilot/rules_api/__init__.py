"""Rules, runs, runtimes over REST, and the autopilot command."""
