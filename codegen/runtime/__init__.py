"""Calling native programs with arrays: arguments, workspaces, threads, errors."""
