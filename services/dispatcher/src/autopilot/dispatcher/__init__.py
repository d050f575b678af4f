"""Turns admitted runs into issues and tasks and relays run events."""
